"""Rules that say why a GPU will not take a job. A rule that cannot tell refuses.

Four hold for every policy: readings are fresh, what is kept for another is left alone, exclusive means it, and
promises are kept. A `AdmissionGate` is a policy's own rule about a GPU that has residents, whoever wants to join them: an
empty GPU is never refused by it, for nobody is slowed down there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cotenant.core.errors import UsageError
from cotenant.core.units import format_bytes, format_duration
from cotenant.scheduling.placement.gpu_view import MAX_IDLE_BYTES, GpuView
from cotenant.scheduling.placement.memory_demand import MemoryDemand

FIRST_ACTIVITY_TIMEOUT_S = 60.0
"""A job that has not touched its GPU for so long is loading data or the like; it stops counting as about to start.

AEGIS measured 8.2 s from dispatch to first GPU activity in the median, 20.6 s at the 95th percentile, 55.5 s at most.
"""

OPEN = -math.inf
CLOSED = math.inf


@dataclass(frozen=True, slots=True)
class AdmissionGate:
    """A rule about a GPU with residents.

    Attributes:
        opens_at_s: from when on it admits: `OPEN`, a time, or `CLOSED` until something changes on the GPU.
        reason: a sentence with the numbers, for a gate that is closed at that time.
        of_activity: it is about what the residents do, or will do; it does not hold who ran out of memory.
    """

    rule: str
    opens_at_s: Callable[[GpuView], float]
    reason: Callable[[GpuView, float], str]
    never_closes: bool = False
    of_activity: bool = True

    def refuses(self, view: GpuView, at_s: float) -> str | None:
        """Why not now, or None."""
        closed = bool(view.residents) and not self.never_closes and self.opens_at_s(view) > at_s
        return self.reason(view, at_s) if closed else None


def all_gates_open_at_s(gates: Sequence[AdmissionGate]) -> Callable[[GpuView], float]:
    """When all `gates` of a GPU with residents are open."""
    if not gates:
        return lambda _view: OPEN
    if len(gates) == 1:
        return gates[0].opens_at_s
    asked = [each.opens_at_s for each in reversed(gates)]  # the last ones look at less

    def opens_at_s(view: GpuView) -> float:
        latest = OPEN
        for ask in asked:
            opens_s = ask(view)
            if opens_s > latest:
                if opens_s == CLOSED:
                    return CLOSED
                latest = opens_s
        return latest

    return opens_at_s


def stale_telemetry(view: GpuView, at_s: float) -> str | None:
    """Why nothing may be promised there, or None."""
    if view.available_bytes is not None:
        return None
    latest = view.snapshot.latest
    if latest is None:
        return "no reading yet"
    if latest.used_bytes is None:
        return "memory in use could not be read"
    age_s = at_s - latest.at_s
    return f"no trustworthy reading of the memory in use, the last one {format_duration(age_s)} ago"


def reserved(job_id: int, view: GpuView) -> str | None:
    """Whom it is kept for, if that is another job."""
    if view.reserved_for is None or view.reserved_for == job_id:
        return None
    return f"kept free for job {view.reserved_for}, which has waited long"


def honors_exclusive(need: MemoryDemand, view: GpuView) -> str | None:
    """Why the job cannot be alone there, or who is."""
    owner = next((each for each in view.residents if each.sharing == "exclusive"), None)
    if owner is not None:
        return f"job {owner.job_id} has it alone"
    if not need.alone:
        return None
    if view.total_bytes < need.min_gpu_bytes:
        return f"has {format_bytes(view.total_bytes)}, must be a GPU of {format_bytes(need.min_gpu_bytes)}"
    if view.residents:
        names = ", ".join(str(each.job_id) for each in view.residents)
        noun = "job" if len(view.residents) == 1 else "jobs"
        return f"must be empty ({need.exclusive_reason}), {noun} {names} on it"
    strangers = view.snapshot.foreign_bytes or 0
    if strangers > MAX_IDLE_BYTES:
        return f"must be empty ({need.exclusive_reason}), {format_bytes(strangers)} in use by others"
    return None


def honors_share(need: MemoryDemand, view: GpuView) -> str | None:
    """Why the job cannot share there as it asks."""
    if need.sharing == "mig" and view.snapshot.gpu.mig_profile is None:
        return "is no MIG instance, which was asked for"
    return None


def insufficient_memory(need: MemoryDemand, view: GpuView) -> str | None:
    """What is missing, or None."""
    available = view.available_bytes or 0
    if need.bytes is None or need.bytes + need.headroom_bytes <= available:
        return None
    spare = f" and {format_bytes(need.headroom_bytes)} to spare" if need.headroom_bytes else ""
    return f"needs {format_bytes(need.bytes)}{spare}, {format_bytes(available)} available"


def smact_too_high(limit: float) -> AdmissionGate:
    """Refuse to add a job to residents that already keep `limit` (0..1) of the SMs active, or nobody knows.

    Raises:
        UsageError: `limit` is no ratio.
    """
    _ratio("SMACT", limit)

    def opens_at_s(view: GpuView) -> float:
        smact = view.smact
        return OPEN if smact is not None and smact < limit else CLOSED

    def reason(view: GpuView, _at_s: float) -> str:
        smact = view.smact
        return f"SMACT not known, limit {limit:.2f}" if smact is None else f"SMACT {smact:.2f}, limit {limit:.2f}"

    return AdmissionGate("smact_too_high", opens_at_s, reason)


def warming_up(
    warmup_s: float, *, first_activity_timeout_s: float = FIRST_ACTIVITY_TIMEOUT_S, known_too: bool = True
) -> AdmissionGate:
    """Refuse a GPU until its newest resident has been at work for `warmup_s`; 0 turns the rule off.

    Memory needs no such rule: the promise is set aside at once. Activity does: a job that has not run a kernel
    yet shows none, and a whole queue would pass `smact_too_high` in the meantime. A resident that stays unseen
    for `first_activity_timeout_s` blocks no longer, or a job that downloads for an hour would keep a GPU to itself.
    Without `known_too`, nobody waits for residents whose activity is known from earlier jobs of the same work.

    Raises:
        UsageError: `warmup_s` is no duration.
    """
    if not 0 <= warmup_s < math.inf:
        raise UsageError(f"a GPU cannot settle for {warmup_s:g} seconds", hint="0 turns the rule off")

    def opens_at_s(view: GpuView) -> float:
        latest = OPEN
        for each in view.residents:
            if known_too or each.smact is None:
                first_active_at_s = each.first_active_at_s
                until_s = (
                    each.placed_at_s + first_activity_timeout_s
                    if first_active_at_s is None
                    else first_active_at_s + warmup_s
                )
                latest = until_s if until_s > latest else latest
        return latest

    def reason(view: GpuView, at_s: float) -> str:
        for each in view.residents:
            if not known_too and each.smact is not None:
                continue
            if each.first_active_at_s is None:
                if at_s < each.placed_at_s + first_activity_timeout_s:
                    age_s = at_s - each.placed_at_s
                    return f"job {each.job_id} was placed {format_duration(age_s)} ago and is not at work yet"
            elif at_s < each.first_active_at_s + warmup_s:
                age_s = at_s - each.first_active_at_s
                return f"job {each.job_id} is at work for {format_duration(age_s)}, settles in {warmup_s:.0f}s"
        return "settled"

    return AdmissionGate("settled", opens_at_s, reason, never_closes=warmup_s == 0)


def warming_up_unless_known(warmup_s: float) -> AdmissionGate:
    """As `warming_up`, for residents of whose activity nothing is known."""
    return warming_up(warmup_s, known_too=False)


def max_jobs(residents: int) -> AdmissionGate:
    """Refuse to be one more than so many on a GPU.

    Raises:
        UsageError: nobody could share.
    """
    if residents < 2:
        raise UsageError(f"at most {residents} jobs on a GPU is no sharing", hint="use the policy `exclusive`")

    def opens_at_s(view: GpuView) -> float:
        return OPEN if len(view.residents) < residents else CLOSED

    def reason(view: GpuView, _at_s: float) -> str:
        return f"{len(view.residents)} jobs on it, at most {residents} share"

    return AdmissionGate("max_jobs", opens_at_s, reason, of_activity=False)


def pressure_too_high(smact: float, smocc: float, drama: float, *, risk: bool = False) -> AdmissionGate:
    """Refuse a GPU whose SMs are active beyond `smact` and well filled (`smocc`) or its memory busy (`drama`) as well.

    With `risk`, each measure counts by `risk_score` its window, else by its mean. What is not known exceeds its limit.

    Source: CARMA's gate (src/server.py: .80, .45, .40) and AEGIS' (.65, .35, .50).

    Raises:
        UsageError: a limit is no ratio.
    """
    limits = {"smact": smact, "smocc": smocc, "drama": drama}
    for name, limit in limits.items():
        _ratio(name.upper(), limit)

    def readings(view: GpuView) -> dict[str, float | None]:
        return {name: _risk(view, name) if risk else view.mean(name) for name in limits}

    def opens_at_s(view: GpuView) -> float:
        over = {name for name, value in readings(view).items() if value is None or value >= limits[name]}
        return CLOSED if "smact" in over and len(over) > 1 else OPEN

    def reason(view: GpuView, _at_s: float) -> str:
        shown = (
            f"{name.upper()} {'not known' if value is None else f'{value:.2f}'} of {limits[name]:.2f}"
            for name, value in readings(view).items()
        )
        return f"{'risk' if risk else 'pressure'}: {', '.join(shown)}"

    return AdmissionGate("pressure_too_high", opens_at_s, reason)


def risk_score(readings: Sequence[float]) -> float:
    """One number for a window of readings, oldest first, that leans to its high end. Not for none.

    .20 mean + .20 median + .30 95th percentile + .10 50th percentile + .20 exponential average with 2 / (n + 1).

    Source: CARMA, src/monitor.py; AEGIS keeps it. The median counts twice there, so it does here.
    """
    ranked = sorted(readings)
    average = readings[0]
    weight = 2.0 / (len(readings) + 1)
    for each in readings[1:]:
        average += weight * (each - average)
    mean = sum(ranked) / len(ranked)
    return 0.2 * mean + 0.3 * _percentile(ranked, 0.5) + 0.3 * _percentile(ranked, 0.95) + 0.2 * average


def _percentile(ranked: Sequence[float], share: float) -> float:
    place = share * (len(ranked) - 1)
    below = int(place)
    above = min(below + 1, len(ranked) - 1)
    return ranked[below] + (place - below) * (ranked[above] - ranked[below])


def _risk(view: GpuView, measure: str) -> float | None:
    if view.measured_activity is not None:
        return view.mean(measure)
    readings = view.window(measure)
    return risk_score(readings) if readings else None


def _ratio(what: str, limit: float) -> None:
    if not 0 < limit <= 1:
        raise UsageError(f"{what} limit {limit:g} is no ratio above 0 and up to 1", hint="write e.g. `0.8` for 80 %")
