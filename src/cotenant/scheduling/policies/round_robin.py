"""Share by memory promise, on the next GPU in turn that fits; spare GPUs whose SMs are busy."""

from __future__ import annotations

from cotenant.scheduling.placement import scores
from cotenant.scheduling.policies.memory_based import memory_based

round_robin = memory_based("round-robin", scores.round_robin)
