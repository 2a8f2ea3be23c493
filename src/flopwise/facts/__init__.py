"""What is known: accelerators, offers, models, formats, calibrations; inert data and their loaders."""
