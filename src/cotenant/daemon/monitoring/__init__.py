"""Samples of the GPUs, and the checkpoint of telemetry."""
