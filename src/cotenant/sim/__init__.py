"""A server made of numbers: simulated jobs, interference, workload tables."""
