"""What a traced script reads and writes, kept apart from the user's files."""
