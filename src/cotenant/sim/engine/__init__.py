"""Discrete-event simulation of jobs on a cluster: attempts, GPUs, speeds, faults, and what a policy observes."""
