"""Share by memory promise, on the GPU whose SMs are most active below the limit (MUG): others stay idle for long."""

from __future__ import annotations

from cotenant.scheduling import scores
from cotenant.scheduling.policies.sharing import by_memory

most_utilized = by_memory("most-utilized", scores.most_active)
