"""cotenant and Ray: `cotenant.ray.options(script)` is what a task requests of Ray; the rest gives a pilot GPUs of Ray.

Importing it imports nothing else: it is in every worker and every relay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotenant.ray.task_options import options

__all__ = ["options"]


def __getattr__(name: str) -> Any:
    if name == "options":
        from cotenant.ray.task_options import options

        return options
    raise AttributeError(f"module `cotenant.ray` has no attribute `{name}`")
