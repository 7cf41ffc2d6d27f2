"""cotenant: GPU memory of training jobs, estimated; GPU servers, shared.

`cotenant.estimate(...)` is the Python call; the command line is `cotenant`. Importing the package imports
nothing else: names arrive on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from cotenant.estimators.api import estimate

__all__ = ["__version__", "estimate"]


def __getattr__(name: str) -> Any:
    if name == "estimate":
        from cotenant.estimators.api import estimate

        return estimate
    raise AttributeError(f"module `cotenant` has no attribute `{name}`")
