"""GPU samples, and what running attempts are measured to use."""
