"""Pixels over the daemon's interface."""
