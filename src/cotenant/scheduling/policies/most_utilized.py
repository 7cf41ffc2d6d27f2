"""Share by memory promise, on the GPU whose SMs are most active below the limit (MUG): others stay idle for long."""

from __future__ import annotations

from cotenant.scheduling.placement import scores
from cotenant.scheduling.policies.memory_based import memory_based

most_utilized = memory_based("most-utilized", scores.most_active)
