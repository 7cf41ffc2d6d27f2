"""Reproductions of published tables and figures."""
