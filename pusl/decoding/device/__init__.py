"""The engine for GPUs: all state lives on the device, and the host only reads what was found."""
