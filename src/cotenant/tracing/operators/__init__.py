"""What operators give and take on fake CUDA tensors."""
