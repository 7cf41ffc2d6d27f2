"""What is seen of GPUs and attempts while they run."""
