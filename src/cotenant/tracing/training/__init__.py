"""The training loop, its models and its optimizers, as a trace observes them."""
