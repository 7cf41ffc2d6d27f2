"""Runs unmodified torch scripts on a simulated server: fake CUDA tensors, real memory limits."""
