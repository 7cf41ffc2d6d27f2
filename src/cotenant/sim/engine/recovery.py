"""What follows for a job whose attempt ran out of memory in a simulated world: the daemon's own recovery decides."""

from __future__ import annotations

from cotenant.core.job import Attempt, AttemptExit, Job, OomEvidence
from cotenant.core.units import MiB
from cotenant.scheduling.recovery import after_exit
from cotenant.sim.engine.sim_gpu import RunningAttempt, SimGpu

ALLOCATION_STEP = 1 / 32
"""Of what is still wanted, a job asks for this share at once, but not less than 64 MiB: it takes what is free, and
dies of the next block. So its last words tell little more than what was free, as in reality."""


def job_after_oom(live: RunningAttempt, card: SimGpu, wanted_bytes: int, at_s: float) -> Job:
    """The job after it asked for `wanted_bytes` that `card` does not have: queued again, or done."""
    free_bytes = card.total_bytes - card.held_bytes
    tried_bytes = min(wanted_bytes - free_bytes, max(64 * MiB, int(wanted_bytes * ALLOCATION_STEP)))
    held_bytes = live.held_bytes + free_bytes
    evidence = OomEvidence(
        exception=True,
        tried_bytes=tried_bytes,
        in_use_bytes=held_bytes,
        free_bytes=0,
        total_bytes=card.total_bytes,
    )
    attempt = Attempt(
        number=len(live.job.attempts) + 1,
        placement=live.placement,
        placed_at_s=live.placed_s,
        started_at_s=live.placed_s,
        peak_observed_bytes={each.gpu.uuid: held_bytes for each in live.cards},
        ended_at_s=at_s,
        exit=AttemptExit(exit_code=1, signal=None, reason="exited", oom=evidence),
    )
    return after_exit(live.job, attempt)
