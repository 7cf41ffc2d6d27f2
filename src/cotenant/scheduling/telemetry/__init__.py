"""GPU samples, and the measured resource usage and co-runs of live attempts."""
