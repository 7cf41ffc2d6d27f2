"""What clients read: jobs, GPUs, usage, timelines and metrics, made of the state of the control loop."""
