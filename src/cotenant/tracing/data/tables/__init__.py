"""Rows and columns that are not on this machine: of CSV, JSON, pandas and Hugging Face."""
