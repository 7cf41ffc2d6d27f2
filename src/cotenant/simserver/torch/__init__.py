"""A script that nobody changed on the GPUs of a simulated server: fake CUDA tensors, real limits."""
