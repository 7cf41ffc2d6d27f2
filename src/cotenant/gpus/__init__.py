"""Readings of GPUs, and their sharing modes."""
