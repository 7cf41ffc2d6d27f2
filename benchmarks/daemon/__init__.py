"""Throughput, recovery and endurance of the daemon."""
