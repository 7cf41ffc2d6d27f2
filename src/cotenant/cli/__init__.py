"""Text over the daemon's interface."""
