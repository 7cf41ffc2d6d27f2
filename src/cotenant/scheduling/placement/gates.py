"""Gates: rules of a policy on GPUs with residents. A gate whose input is unknown refuses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cotenant.core.errors import UsageError
from cotenant.core.stats import mean, quantile
from cotenant.core.units import counted, format_duration
from cotenant.scheduling.placement.gpu_view import AnyResident, GpuView
from cotenant.scheduling.placement.refusal import Refusal

FIRST_ACTIVITY_TIMEOUT_S = 60.0
"""A job that has not used its GPU for this long is loading data or the like, and no longer counts as about to start.

AEGIS measured 8.2 s from dispatch to first GPU activity in the median, 20.6 s at the 95th percentile, 55.5 s at most.
"""


@dataclass(frozen=True, slots=True)
class AdmissionGate:
    """A policy's rule on a GPU with residents, whichever job wants to join them. An empty GPU passes every gate.

    Attributes:
        check: why the GPU is closed at a time, or None. It depends on the view and the time alone, and once open the
            gate stays open until the GPU changes.
        never_closes: `check` never refuses; policies drop such a gate.
        is_of_activity: it is about what the residents do. A job that ran out of memory passes it on its retry.
    """

    name: str
    check: Callable[[GpuView, float], Refusal | None]
    never_closes: bool = False
    is_of_activity: bool = True


def smact_too_high(limit: float) -> AdmissionGate:
    """Refuse GPUs whose residents keep `limit` (0..1) of the SMs active, or an unknown part of them.

    Raises:
        UsageError: `limit` is not a ratio.
    """
    _check_ratio("SMACT", limit)

    def check(view: GpuView, _at_s: float) -> Refusal | None:
        smact = view.smact
        if smact is not None and smact < limit:
            return None
        return _smact_refusal(smact, limit)

    return AdmissionGate("smact_too_high", check)


def smact_above(limit: float) -> AdmissionGate:
    """As `smact_too_high`, but activity of exactly `limit` passes, and a limit of 1 is none.

    Raises:
        UsageError: `limit` is not a ratio.
    """
    _check_ratio("SMACT", limit)

    def check(view: GpuView, _at_s: float) -> Refusal | None:
        smact = view.smact
        return None if smact is not None and smact <= limit else _smact_refusal(smact, limit)

    return AdmissionGate("smact_too_high", check, never_closes=limit >= 1)


def _smact_refusal(smact: float | None, limit: float) -> Refusal:
    return Refusal("smact_too_high", _smact_text, math.inf, smact, limit)


def _smact_text(smact: float | None, limit: float) -> str:
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

    def check(view: GpuView, at_s: float) -> Refusal | None:
        opens_at_s, blocker = at_s, None
        for resident in view.residents:
            if include_known or resident.smact is None:
                first_s = resident.first_active_at_s
                until_s = resident.placed_at_s + first_activity_timeout_s if first_s is None else first_s + warmup_s
                if until_s > opens_at_s:
                    opens_at_s, blocker = until_s, resident
        return None if blocker is None else Refusal("warming_up", _warmup_text, opens_at_s, blocker, at_s, warmup_s)

    return AdmissionGate("warming_up", check, never_closes=warmup_s == 0)


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

    full = _max_jobs_refusal(limit, limit)

    def check(view: GpuView, _at_s: float) -> Refusal | None:
        count = len(view.residents)
        if count < limit:
            return None
        return full if count == limit else _max_jobs_refusal(count, limit)

    return AdmissionGate("max_jobs", check, is_of_activity=False)


def _max_jobs_refusal(count: int, limit: int) -> Refusal:
    return Refusal("max_jobs", lambda: f"{counted(count, 'job')} on it, at most {limit} share a GPU")


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

    def check(view: GpuView, _at_s: float) -> Refusal | None:
        active = _risk(view, "smact") if risk else view.mean("smact")
        if active is not None and active < smact:
            return None  # the usual answer
        readings = {name: _risk(view, name) if risk else view.mean(name) for name in limits}
        over = {name for name, value in readings.items() if value is None or value >= limits[name]}
        if "smact" not in over or len(over) < 2:
            return None
        return Refusal("pressure_too_high", lambda: _pressure_text(readings, limits, risk=risk))

    return AdmissionGate("pressure_too_high", check)


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
