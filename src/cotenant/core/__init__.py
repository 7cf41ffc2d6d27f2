"""The nouns: jobs, GPUs, estimates, placements, events and commands; units, errors, ports. Pure."""
