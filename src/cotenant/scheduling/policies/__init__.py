"""Policies by name."""
