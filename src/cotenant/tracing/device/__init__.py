"""The simulated GPU, as PyTorch and scripts see it."""
