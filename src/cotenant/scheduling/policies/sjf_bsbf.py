"""SJF-BSBF as published: shortest job first, and for each resident the better of sharing now and starting after it.

Where no GPU is empty, a job is compared with each GPU that has one resident: when do both end if they share from now
on, and when if the new job waits for the resident to end? It shares where that lowers the mean, on the GPU where it
lowers it most. Durations come from history; where one is not known, both jobs count as having the same time left.

Not here: halving the batch with gradient accumulation where memory is short, for jobs are not changed.

Source: "Scheduling deep learning jobs in multi-tenant GPU clusters via wise resource sharing" (2024), SJF-BSBF.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from cotenant.core.job import Job
from cotenant.scheduling.placement import gates, orders, scores
from cotenant.scheduling.placement.gpu_view import GpuView, NewResident
from cotenant.scheduling.placement.pairing import CoRunner, annotate, co_runner_of, residents_of
from cotenant.scheduling.placement.policy import JobPredictions
from cotenant.scheduling.placement.ranked import Collocation, Ranked
from cotenant.scheduling.placement.refusal import Refusal
from cotenant.scheduling.prediction.interference import InterferencePredictor, PriorInterference

DURATION_STEP_RATIO = 1.2
"""Times left are rounded to powers of this, so that jobs fall into few classes."""

ASSUMED_LEFT_S = 3600.0
"""Time left of both jobs where neither is known."""


class TimedCoRunner(NamedTuple):
    """A job, and how long it has to run alone; None if not known."""

    co_runner: CoRunner
    left_s: float | None


TimedResidents = tuple[TimedCoRunner, ...]


class ShareOrWaitPairing:
    """The pairing rule of the policy. It remembers durations by workload: residents do not have theirs."""

    def __init__(self, predictor: InterferencePredictor) -> None:
        self._predictor = predictor
        self._durations: dict[str, float] = {}

    def with_predictions(self, predictions: JobPredictions) -> ShareOrWaitPairing:
        """The same with what history knows of slowdowns."""
        return ShareOrWaitPairing(predictions.interference or self._predictor)

    def profile(self, job: Job, predictions: JobPredictions) -> TimedCoRunner:
        """Its activity and its duration."""
        co_runner = co_runner_of(job, predictions)
        duration_s = predictions.duration_s(job)
        if duration_s is not None and co_runner.workload:
            self._durations[co_runner.workload] = duration_s
        return TimedCoRunner(co_runner, _rounded(duration_s))

    def gpu_class(self, view: GpuView) -> TimedResidents:
        """The residents, and the time that a single one has left."""
        residents = residents_of(view)
        if len(residents) != 1:
            return tuple(TimedCoRunner(resident, None) for resident in residents)
        duration_s = self._durations.get(residents[0].workload)
        if duration_s is None:
            return (TimedCoRunner(residents[0], None),)
        ran_s = max(0.0, view.at_s - view.residents[0].placed_at_s)  # after a restart there may be no sample yet
        return (TimedCoRunner(residents[0], _rounded(max(duration_s - ran_s, duration_s / 20))),)

    def annotate(self, resident: NewResident, profile: TimedCoRunner) -> None:
        """Its activity."""
        annotate(resident, profile.co_runner)

    def judge(self, profile: TimedCoRunner, gpu_class: TimedResidents) -> float | Refusal:
        """What sharing saves, negated; an empty GPU saves more than any other."""
        if not gpu_class:
            return -math.inf
        count = len(gpu_class)
        if count > 1:
            return Refusal("max_jobs", lambda: f"{count} jobs on it, at most 2 share a GPU")
        shared_s, in_turn_s = self._mean_ends(profile, gpu_class[0])
        if shared_s >= in_turn_s:
            text = (
                f"shared, both would end after {shared_s:.0f}s on average, one after the other after {in_turn_s:.0f}s"
            )
            return Refusal("waiting_is_faster", lambda: text)
        return round(shared_s - in_turn_s, 3)

    def _mean_ends(self, new: TimedCoRunner, resident: TimedCoRunner) -> tuple[float, float]:
        """Mean time to the ends of both: shared from now on, and one after the other."""
        known_s = new.left_s or resident.left_s or ASSUMED_LEFT_S
        new_s, resident_s = new.left_s or known_s, resident.left_s or known_s
        resident_slowdown, new_slowdown = self._predictor.slowdowns(
            [resident.co_runner.activity, new.co_runner.activity]
        )
        first_end_s = min(new_s * new_slowdown, resident_s * resident_slowdown)
        new_end_s = first_end_s + max(0.0, new_s - first_end_s / new_slowdown)
        resident_end_s = first_end_s + max(0.0, resident_s - first_end_s / resident_slowdown)
        return (new_end_s + resident_end_s) / 2, (resident_s + resident_s + new_s) / 2


def _rounded(seconds: float | None) -> float | None:
    if seconds is None:
        return None
    return float(DURATION_STEP_RATIO ** round(math.log(max(seconds, 1.0), DURATION_STEP_RATIO)))


def sjf_bsbf(
    *, warmup_s: float = 15.0, reserve_after_s: float | None = 1800.0, sharing: Collocation = "time-sliced"
) -> Ranked:
    """`reserve_after_s` keeps long jobs from starving behind short ones."""
    return Ranked(
        name="sjf-bsbf",
        order=orders.shortest_first,
        gates=(gates.warming_up_unless_known(warmup_s),),
        score=scores.most_available_memory,
        pairing=ShareOrWaitPairing(PriorInterference()),
        reserve_after_s=reserve_after_s,
        sharing=sharing,
    )
