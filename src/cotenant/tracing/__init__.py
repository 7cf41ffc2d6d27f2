"""A training script, run on fake CUDA tensors, becomes a MemoryTrace. Needs torch."""
