"""What is known of jobs and GPUs: told, read, and learned from what was seen."""
