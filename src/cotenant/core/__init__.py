"""Jobs, GPUs, estimates, placements, events and commands; units, errors, protocols, registry of plug-ins. Pure."""
