"""Process groups, DDP and processes of a script, of which rank 0 is traced."""
