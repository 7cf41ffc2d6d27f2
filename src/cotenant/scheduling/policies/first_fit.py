"""Share by memory promise, on the first GPU that fits; spare GPUs whose SMs are busy. The simplest way to pack."""

from __future__ import annotations

from cotenant.scheduling import scores
from cotenant.scheduling.policies.sharing import by_memory

first_fit = by_memory("first-fit", scores.first)
