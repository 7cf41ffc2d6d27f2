"""Pages about data sets and models."""
