"""Estimators learned from published measurements."""
