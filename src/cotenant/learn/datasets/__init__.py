"""Rows of training jobs: read, tidied, checked, and turned to features."""
