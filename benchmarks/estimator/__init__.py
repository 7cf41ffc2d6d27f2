"""Accuracy and speed of memory estimates."""
