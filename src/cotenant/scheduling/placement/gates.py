"""Gates: rules of a policy on GPUs with residents. A gate whose input is unknown refuses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from cotenant.core.errors import UsageError
from cotenant.core.stats import mean, quantile
from cotenant.core.units import counted, format_duration
from cotenant.scheduling.placement.gpu_view import AnyResident, GpuView
from cotenant.scheduling.placement.refusal import Refusal

FIRST_ACTIVITY_TIMEOUT_S = 60.0
"""A job that has not used its GPU for this long is loading data or the like, and no longer counts as about to start.

AEGIS measured 8.2 s from dispatch to first GPU activity in the median, 20.6 s at the 95th percentile, 55.5 s at most.
"""

OPEN, SHUT = -math.inf, math.inf
"""When a gate opens that is open, and one that only a change of its GPU opens."""


@dataclass(frozen=True, slots=True)
class AdmissionGate:
    """A policy's rule on a GPU with residents, whichever job wants to join them. An empty GPU passes every gate.

    Decisions ask when gates open, explanations why they are closed.

    Attributes:
        opens_at_s: when the gate opens if the GPU does not change, as of a time: `OPEN` if it is open, infinite if only
            a change opens it. It depends on the view and the time alone, and once open the gate stays open until the
            GPU changes.
        text: why it is closed, a sentence with the numbers; not called while it is open.
        never_closes: it is always open; policies drop such a gate.
        is_of_activity: it is about what the residents do. A job that ran out of memory passes it on its retry.
    """

    name: str
    opens_at_s: Callable[[GpuView, float], float]
    text: Callable[[GpuView, float], str]
    never_closes: bool = False
    is_of_activity: bool = True

    def check(self, view: GpuView, at_s: float) -> Refusal | None:
        """Why the GPU is closed at a time, or None. Its reason is that of the view when it is read."""
        opens_at_s = self.opens_at_s(view, at_s)
        return None if opens_at_s == OPEN else Refusal(self.name, self.text, opens_at_s, view, at_s)


def smact_too_high(limit: float) -> AdmissionGate:
    """Refuse GPUs whose residents keep `limit` (0..1) of the SMs active, or an unknown part of them.

    Raises:
        UsageError: `limit` is not a ratio.
    """
    _check_ratio("SMACT", limit)

    def opens_at_s(view: GpuView, _at_s: float) -> float:
        smact = view.smact
        return OPEN if smact is not None and smact < limit else SHUT

    return AdmissionGate("smact_too_high", opens_at_s, partial(_smact_text, limit))


def smact_above(limit: float) -> AdmissionGate:
    """As `smact_too_high`, but activity of exactly `limit` passes, and a limit of 1 is none.

    Raises:
        UsageError: `limit` is not a ratio.
    """
    _check_ratio("SMACT", limit)

    def opens_at_s(view: GpuView, _at_s: float) -> float:
        smact = view.smact
        return OPEN if smact is not None and smact <= limit else SHUT

    return AdmissionGate("smact_too_high", opens_at_s, partial(_smact_text, limit), never_closes=limit >= 1)


def _smact_text(limit: float, view: GpuView, _at_s: float) -> str:
    smact = view.smact
    return f"SMACT {'not known' if smact is None else f'{smact:.2f}'}, limit {limit:.2f}"


def warming_up(
    warmup_s: float, *, first_activity_timeout_s: float = FIRST_ACTIVITY_TIMEOUT_S, include_known: bool = True
) -> AdmissionGate:
    """Refuse a GPU until its newest resident has been active for `warmup_s`; 0 turns the gate off.

    Memory needs no such gate: a promise counts at once. Activity does: a job that has not launched a kernel yet shows
    none, and a whole queue would pass `smact_too_high` in the meantime. A resident that stays inactive for
    `first_activity_timeout_s` no longer counts, or a job that downloads for an hour would keep a GPU to itself.
    Without `include_known`, residents whose activity is known from earlier jobs of the same workload do not count.

    Raises:
        UsageError: `warmup_s` is not a duration.
    """
    if not 0 <= warmup_s < math.inf:
        raise UsageError(f"`warmup_s` must be >= 0 and finite, got {warmup_s:g}", hint="0 turns the gate off")

    def until_s(resident: AnyResident) -> float:
        first_s = resident.first_active_at_s
        return resident.placed_at_s + first_activity_timeout_s if first_s is None else first_s + warmup_s

    def opens_at_s(view: GpuView, at_s: float) -> float:
        latest_s = OPEN
        for resident in view.residents:
            if include_known or resident.smact is None:
                first_s = resident.first_active_at_s  # `until_s`, without the call
                opens_s = resident.placed_at_s + first_activity_timeout_s if first_s is None else first_s + warmup_s
                latest_s = opens_s if opens_s > latest_s else latest_s
        return latest_s if latest_s > at_s else OPEN

    def text(view: GpuView, at_s: float) -> str:
        counted_ones = (resident for resident in view.residents if include_known or resident.smact is None)
        return _warmup_text(max(counted_ones, key=until_s), at_s, warmup_s)

    return AdmissionGate("warming_up", opens_at_s, text, never_closes=warmup_s == 0)


def _warmup_text(resident: AnyResident, at_s: float, warmup_s: float) -> str:
    first_s = resident.first_active_at_s
    if first_s is None:
        age = format_duration(at_s - resident.placed_at_s)
        return f"job {resident.job_id} was placed {age} ago and has not used the GPU yet"
    return f"job {resident.job_id} has been active for {format_duration(at_s - first_s)}, warms up for {warmup_s:.0f}s"


def warming_up_unless_known(warmup_s: float) -> AdmissionGate:
    """As `warming_up`, for residents whose activity is not known from earlier jobs."""
    return warming_up(warmup_s, include_known=False)


def max_jobs(limit: int) -> AdmissionGate:
    """Refuse GPUs with `limit` residents.

    Raises:
        UsageError: `limit` does not let jobs share.
    """
    if limit < 2:
        raise UsageError(f"`max_jobs` must be >= 2 to share a GPU, got {limit}", hint="use the policy `exclusive`")

    def opens_at_s(view: GpuView, _at_s: float) -> float:
        return OPEN if len(view.residents) < limit else SHUT

    def text(view: GpuView, _at_s: float) -> str:
        return f"{counted(len(view.residents), 'job')} on it, at most {limit} share a GPU"

    return AdmissionGate("max_jobs", opens_at_s, text, is_of_activity=False)


def pressure_too_high(smact: float, smocc: float, drama: float, *, risk: bool = False) -> AdmissionGate:
    """Refuse a GPU whose SMs are active beyond `smact`, and are well filled (`smocc`) or its memory is busy (`drama`).

    With `risk`, each measure counts by `risk_score` of its window, else by its mean. An unknown measure exceeds its
    limit.

    Source: CARMA's gate (src/server.py: .80, .45, .40) and AEGIS' (.65, .35, .50).

    Raises:
        UsageError: a limit is not a ratio.
    """
    limits = {"smact": smact, "smocc": smocc, "drama": drama}
    for name, limit in limits.items():
        _check_ratio(name.upper(), limit)

    def reading(view: GpuView, measure: str) -> float | None:
        return _risk(view, measure) if risk else view.mean(measure)

    def is_over(view: GpuView, measure: str) -> bool:
        value = reading(view, measure)
        return value is None or value >= limits[measure]

    def opens_at_s(view: GpuView, _at_s: float) -> float:
        return SHUT if is_over(view, "smact") and (is_over(view, "smocc") or is_over(view, "drama")) else OPEN

    def text(view: GpuView, _at_s: float) -> str:
        return _pressure_text({name: reading(view, name) for name in limits}, limits, risk=risk)

    return AdmissionGate("pressure_too_high", opens_at_s, text)


def _pressure_text(readings: dict[str, float | None], limits: dict[str, float], *, risk: bool) -> str:
    measures = ", ".join(
        f"{name.upper()} {'not known' if value is None else f'{value:.2f}'} of {limits[name]:.2f}"
        for name, value in readings.items()
    )
    return f"{'risk' if risk else 'pressure'}: {measures}"


def risk_score(readings: Sequence[float]) -> float:
    """One number for a window of readings, oldest first, that leans to its high end. The window must not be empty.

    .20 mean + .20 median + .30 95th percentile + .10 50th percentile + .20 exponential average with 2 / (n + 1).

    Source: CARMA, src/monitor.py, unchanged in AEGIS. The median counts twice there, so it does here.
    """
    ranked = sorted(readings)
    average = readings[0]
    weight = 2.0 / (len(readings) + 1)
    for reading in readings[1:]:
        average += weight * (reading - average)
    return 0.2 * mean(ranked) + 0.3 * quantile(ranked, 0.5) + 0.3 * quantile(ranked, 0.95) + 0.2 * average


def _risk(view: GpuView, measure: str) -> float | None:
    if view.measured_activity is not None:
        return view.mean(measure)
    readings = view.window(measure)
    return risk_score(readings) if readings else None


def _check_ratio(what: str, limit: float) -> None:
    if not 0 < limit <= 1:
        raise UsageError(f"{what} limit must be above 0 and at most 1, got {limit:g}", hint="write e.g. `0.8` for 80 %")
