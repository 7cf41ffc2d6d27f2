"""Share by memory promise, on the GPU whose SMs are least active (LUG in the literature)."""

from __future__ import annotations

from cotenant.scheduling import scores
from cotenant.scheduling.policies.sharing import by_memory

least_utilized = by_memory("least-utilized", scores.least_active)
