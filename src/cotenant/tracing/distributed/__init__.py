"""Several GPUs, of which a traced process plays its part."""
