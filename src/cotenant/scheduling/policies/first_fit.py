"""Share by memory promise, on the first GPU that fits; spare GPUs whose SMs are busy. The simplest way to pack."""

from __future__ import annotations

from cotenant.scheduling.placement import scores
from cotenant.scheduling.policies.memory_based import memory_based

first_fit = memory_based("first-fit", scores.first)
