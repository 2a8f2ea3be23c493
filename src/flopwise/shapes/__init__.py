"""What a kernel engineer would say of a model's shapes on a device."""
