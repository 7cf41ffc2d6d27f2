"""Datasets and training for learned estimators."""
