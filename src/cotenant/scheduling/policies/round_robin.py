"""Share by memory promise, on the next GPU in turn that fits; spare GPUs whose SMs are busy."""

from __future__ import annotations

from cotenant.scheduling import scores
from cotenant.scheduling.policies.sharing import by_memory

round_robin = by_memory("round-robin", scores.next_in_turn)
