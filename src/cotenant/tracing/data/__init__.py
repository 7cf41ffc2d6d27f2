"""Data loaders that read a few real samples, and synthetic data in place of missing data."""
