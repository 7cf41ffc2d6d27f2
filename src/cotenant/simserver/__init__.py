"""A simulated GPU server: cards, power, jobs and an NVML-like backend."""
