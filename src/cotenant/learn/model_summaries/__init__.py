"""Layers of a network from the summary of a model, or from its module."""
