"""cotenant for people who use Ray directly: `cotenant.ray.options(script)` is what a task or an actor asks Ray for."""

from cotenant.ray.task_options import options

__all__ = ["options"]
