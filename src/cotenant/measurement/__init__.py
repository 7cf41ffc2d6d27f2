"""Ground truth: training scripts run unchanged on a real GPU, and what they took written down."""
