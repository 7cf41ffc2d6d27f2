"""Estimates, made in processes that cannot outlive the daemon."""
