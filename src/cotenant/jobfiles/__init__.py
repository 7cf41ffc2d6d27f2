"""Readers of job description files."""
