"""What a script expects of its data, by its own code, which is read and not run."""
