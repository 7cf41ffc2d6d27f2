"""What clients submit: the fields of jobs, their checks, and their numbers."""
