"""Share by memory promise, on the GPU whose SMs are least active (LUG in the literature)."""

from __future__ import annotations

from cotenant.scheduling.placement import scores
from cotenant.scheduling.policies.memory_based import memory_based

least_utilized = memory_based("least-utilized", scores.least_active)
