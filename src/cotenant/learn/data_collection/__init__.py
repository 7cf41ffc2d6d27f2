"""Collects training data: draws configurations and labels each by tracing or training it."""
