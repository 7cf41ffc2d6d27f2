"""A simulated GPU server: GPUs, power, jobs and an NVML-like backend."""
