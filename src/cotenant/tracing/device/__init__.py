"""The GPU that is not there, as torch and a script see it."""
