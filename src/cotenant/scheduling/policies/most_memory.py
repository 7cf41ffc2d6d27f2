"""Share by memory promise, on the GPU with most memory available; spare GPUs whose SMs are busy.

Spreads jobs over GPUs, which keeps room for each to outgrow its promise.
"""

from __future__ import annotations

from cotenant.scheduling.placement import scores
from cotenant.scheduling.policies.memory_based import memory_based

most_memory = memory_based("most-memory", scores.most_available_memory)
