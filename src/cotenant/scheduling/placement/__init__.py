"""Who goes where: policies at work on what waits and on GPUs as they change."""
