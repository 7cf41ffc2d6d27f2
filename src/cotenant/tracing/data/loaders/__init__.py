"""Data loaders that read a few real samples, and where their epochs end."""
