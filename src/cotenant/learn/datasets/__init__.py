"""Data sets of training jobs: read, cleaned, checked, and turned into features."""
