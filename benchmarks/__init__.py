"""Measurements of speed, accuracy and reliability; run each as `python -m benchmarks.GROUP.NAME`."""
