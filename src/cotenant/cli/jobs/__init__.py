"""Verbs of jobs: submit, list, show, change, and read their output."""
