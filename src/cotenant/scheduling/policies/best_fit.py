"""Share by memory promise, on the fullest GPU that still fits; spare GPUs whose SMs are busy.

Packs jobs on few GPUs, which keeps whole ones free for gangs and large jobs.
"""

from __future__ import annotations

from cotenant.scheduling import scores
from cotenant.scheduling.policies.sharing import by_memory

best_fit = by_memory("best-fit", scores.least_available_memory)
