"""Data of a traced script: a few samples stand for all."""
