"""Measurement campaigns and demonstrations."""
