"""Estimators that others published, and the trivial rules beside them."""
