"""Rules that say why a GPU will not take a job. A rule that cannot tell refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from cotenant.core.errors import UsageError
from cotenant.core.units import format_bytes, format_duration
from cotenant.scheduling.ledger import IDLE_BYTES, Need
from cotenant.scheduling.views import GpuView

UNSEEN_LIMIT_S = 60.0
"""A job that has not touched its GPU for so long is loading data or the like; it stops counting as about to start.

AEGIS measured 8.2 s from dispatch to first GPU activity in the median, 20.6 s at the 95th percentile, 55.5 s at most.
"""


@dataclass(frozen=True, slots=True)
class Filter:
    """A rule: its name, and a check that answers None (admitted) or a sentence with the numbers."""

    rule: str
    refuses: Callable[[Need, GpuView], str | None]


def _fresh_telemetry(_need: Need, view: GpuView) -> str | None:
    if view.available_bytes is not None:
        return None
    latest = view.snapshot.latest
    if latest is None:
        return "no reading yet"
    if latest.used_bytes is None:
        return "memory in use could not be read"
    age_s = view.at_s - latest.at_s
    return f"no trustworthy reading of the memory in use, the last one {format_duration(age_s)} ago"


def _kept_free(need: Need, view: GpuView) -> str | None:
    if view.kept_for is None or view.kept_for == need.job_id:
        return None
    return f"kept free for job {view.kept_for}, which has waited long"


def _honors_exclusive(need: Need, view: GpuView) -> str | None:
    owner = next((each for each in view.residents if each.sharing == "exclusive"), None)
    if owner is not None:
        return f"job {owner.job_id} has it alone"
    if not need.alone:
        return None
    if view.total_bytes < need.least_total_bytes:
        return f"has {format_bytes(view.total_bytes)}, must be a GPU of {format_bytes(need.least_total_bytes)}"
    if view.residents:
        names = ", ".join(str(each.job_id) for each in view.residents)
        noun = "job" if len(view.residents) == 1 else "jobs"
        return f"must be empty ({need.why_alone}), {noun} {names} on it"
    strangers = view.snapshot.strangers_bytes or 0
    if strangers > IDLE_BYTES:
        return f"must be empty ({need.why_alone}), {format_bytes(strangers)} in use by others"
    return None


def _fits_memory(need: Need, view: GpuView) -> str | None:
    available = view.available_bytes or 0
    if need.bytes is None or need.bytes <= available:
        return None
    return f"needs {format_bytes(need.bytes)}, {format_bytes(available)} available"


fresh_telemetry = Filter("fresh_telemetry", _fresh_telemetry)
kept_free = Filter("kept_free", _kept_free)
honors_exclusive = Filter("honors_exclusive", _honors_exclusive)
fits_memory = Filter("fits_memory", _fits_memory)


def smact_below(limit: float) -> Filter:
    """Refuse to add a job to residents that already keep `limit` (0..1) of the SMs active, or nobody knows.

    An empty GPU is never refused: nobody is slowed down there.

    Raises:
        UsageError: `limit` is no ratio.
    """
    if not 0 < limit <= 1:
        raise UsageError(f"SMACT limit {limit:g} is no ratio above 0 and up to 1", hint="write e.g. `0.8` for 80 %")

    def refuses(_need: Need, view: GpuView) -> str | None:
        if not view.residents:
            return None
        smact = view.smact
        if smact is None:
            return f"SMACT not known, limit {limit:.2f}"
        return f"SMACT {smact:.2f}, limit {limit:.2f}" if smact >= limit else None

    return Filter("smact_below", refuses)


def settled(settle_s: float) -> Filter:
    """Refuse a GPU until its newest resident has been at work for `settle_s`; 0 turns the rule off.

    Memory needs no such rule: the promise is set aside at once. Activity does: a job that has not run a kernel
    yet shows none, and a whole queue would pass `smact_below` in the meantime. A resident that stays unseen
    for `UNSEEN_LIMIT_S` blocks no longer, or a job that downloads for an hour would keep a GPU to itself.

    Raises:
        UsageError: `settle_s` is no duration.
    """
    if not 0 <= settle_s < math.inf:
        raise UsageError(f"a GPU cannot settle for {settle_s:g} seconds", hint="0 turns the rule off")

    def refuses(_need: Need, view: GpuView) -> str | None:
        for each in view.residents:
            if each.seen_at_s is None:
                age_s = view.at_s - each.placed_at_s
                if age_s < UNSEEN_LIMIT_S and settle_s > 0:
                    return f"job {each.job_id} was placed {format_duration(age_s)} ago and is not at work yet"
            elif view.at_s - each.seen_at_s < settle_s:
                age_s = view.at_s - each.seen_at_s
                return f"job {each.job_id} is at work for {format_duration(age_s)}, settles in {settle_s:.0f}s"
        return None

    return Filter("settled", refuses)
