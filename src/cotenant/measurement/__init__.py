"""Measurement campaigns: unmodified training scripts on a real GPU, their memory, step times and activity."""
