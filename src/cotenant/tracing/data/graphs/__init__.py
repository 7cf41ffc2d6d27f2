"""Graphs of PyTorch Geometric and OGB that are not on this machine."""
