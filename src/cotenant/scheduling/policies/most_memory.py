"""Share by memory promise, on the GPU with most memory available; spare GPUs whose SMs are busy.

Spreads jobs over GPUs, which keeps room for each to outgrow its promise.
"""

from __future__ import annotations

from cotenant.scheduling import scores
from cotenant.scheduling.policies.sharing import by_memory

most_memory = by_memory("most-memory", scores.most_available_memory)
