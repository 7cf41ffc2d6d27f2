"""Share by memory promise, on the fullest GPU that still fits; spare GPUs whose SMs are busy.

Packs jobs on few GPUs, which keeps whole ones free for gangs and large jobs.
"""

from __future__ import annotations

from cotenant.scheduling.placement import scores
from cotenant.scheduling.policies.memory_based import memory_based

best_fit = memory_based("best-fit", scores.least_available_memory)
