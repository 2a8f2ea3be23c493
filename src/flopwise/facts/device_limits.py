"""Limits of devices that alerts are about, the same in exported rules and in `flopwise watch`."""

BUSY, BUSY_FOR_S = 0.90, 600.0
MEMORY, MEMORY_FOR_S = 0.85, 300.0
"""The usual limits of utilisation and of memory, and for how long."""
POWER_LIMIT, POWER_FOR_S = 0.98, 900.0
"""Share of a device's power limit from which its clocks are lowered; plans assume less under full load."""
THROTTLE_FOR_S = 300.0
HARDWARE_XIDS = {
    46: "the GPU stopped processing", 48: "a double-bit memory error", 64: "a row could not be remapped",
    74: "a fault of NVLink", 79: "the GPU has fallen off the bus", 95: "an uncontained memory error",
    119: "the GPU's own processor does not answer", 154: "the driver asks for a reset",
}  # fmt: skip
"""Numbers of errors after which a GPU is drained and reset.

Source: NVIDIA, read 2026-11-22: Xid checks of Health Validation (46, 48); dynamic page retirement (48, 64); Xid
catalog (the others).
"""
THROTTLE_BITS = {8: "hardware", 32: "heat, by software", 64: "heat, by hardware", 128: "power brake"}
"""Bits of the reasons for which clocks are held down, as NVML numbers them; the power limit has its own alert."""
