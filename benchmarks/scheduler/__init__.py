"""Decisions per second and quality of placement policies."""
