"""Predicted speeds of all residents of a server, and what they become if jobs change their GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from cotenant.core.gpu import GpuSnapshot, Sharing
from cotenant.scheduling.placement.gpu_view import GpuView, NewResident
from cotenant.scheduling.placement.pairing import CoRunner, class_of, co_runners_of
from cotenant.scheduling.prediction.interference import InterferencePredictor
from cotenant.scheduling.prediction.prediction_cache import PredictionCache

Residents = Mapping[int, CoRunner]
"""The residents of a GPU as co-runners, by job."""


class Place(NamedTuple):
    """A GPU or a MIG instance: its number among all, its view, and its residents."""

    number: int
    view: GpuView
    residents: Residents


class SpeedPredictor:
    """Speeds of jobs that share a GPU, by an interference predictor; cached until it learns about one of them."""

    def __init__(self, predictor: InterferencePredictor, sharing: Sharing) -> None:
        self._predictor = predictor
        self.sharing: Sharing = sharing
        self._cached: PredictionCache[tuple[str | None, tuple[CoRunner, ...]], tuple[float, ...]]
        self._cached = PredictionCache(predictor)

    def speeds(self, mig_profile: str | None, co_runners: tuple[CoRunner, ...]) -> tuple[float, ...]:
        """Speed of each co-runner, 1 for that alone on a whole GPU. An instance nobody measured counts as whole."""
        key = (mig_profile, co_runners)
        found = self._cached.get(key)
        if found is None:
            slowdowns = self._predictor.slowdowns([co_runner.activity for co_runner in co_runners], self.sharing)
            found = tuple(
                [
                    self._slice_speed(co_runner, mig_profile) / slowdown
                    for co_runner, slowdown in zip(co_runners, slowdowns, strict=True)
                ]
            )
            self._cached.put(key, found, [co_runner.workload for co_runner in co_runners])
        return found

    def _slice_speed(self, co_runner: CoRunner, mig_profile: str | None) -> float:
        if mig_profile is None:
            return 1.0
        speed = self._predictor.slice_speed(co_runner.workload or None, mig_profile)
        return 1.0 if speed is None else speed


class ServerSpeeds:
    """The residents of all GPUs and their speeds. A job of several GPUs runs at the speed of its slowest.

    `reserved`: for which job GPUs are reserved, by UUID.

    Attributes:
        places: one per GPU, in their order; `places_of`: numbers of the GPUs of each job.
    """

    def __init__(self, gpus: Iterable[GpuSnapshot], predictor: SpeedPredictor, reserved: Mapping[str, int]) -> None:
        self._predictor = predictor
        self.places: list[Place] = []
        self.places_of: dict[int, list[int]] = {}
        self._speeds: list[Mapping[int, float]] = []
        self._vacated: dict[tuple[int, int], GpuView] = {}
        self._added: dict[CoRunner, dict[int, float]] = {}
        for number, gpu in enumerate(gpus):
            view = GpuView(gpu)
            view.reserved_for = reserved.get(view.uuid)
            co_runners = co_runners_of(view)
            view.gpu_class = class_of(view, co_runners)
            residents = {
                resident.job_id: co_runner for resident, co_runner in zip(view.residents, co_runners, strict=True)
            }
            place = Place(number, view, residents)
            self.places.append(place)
            self._speeds.append(self._speeds_at(place, residents))
            for job_id in residents:
                self.places_of.setdefault(job_id, []).append(number)

    def without(self, number: int, job_id: int) -> Residents:
        """The residents of a GPU, less one."""
        residents = dict(self.places[number].residents)
        residents.pop(job_id, None)
        return residents

    def vacated(self, number: int, job_id: int) -> GpuView:
        """A GPU as it would be without this resident."""
        view = self._vacated.get((number, job_id))
        if view is None:
            place = self.places[number]
            snapshot = place.view.snapshot
            left = tuple(resident for resident in snapshot.residents if resident.job_id != job_id)
            view = GpuView(replace(snapshot, residents=left))
            view.reserved_for = place.view.reserved_for
            # What the samples show is of all residents: those who stay act as they do now.
            view.gpu_class = class_of(view, [*self.without(number, job_id).values()])
            self._vacated[number, job_id] = view
        return view

    def draft(self, number: int, job_id: int) -> GpuView:
        """As `vacated`, of one's own, for `join`."""
        vacated = self.vacated(number, job_id)
        view = GpuView(vacated.snapshot)
        view.reserved_for, view.gpu_class = vacated.reserved_for, vacated.gpu_class
        return view

    def join(self, view: GpuView, job_id: int, promised_bytes: int, residents: Residents, at_s: float) -> None:
        """Add a job to a draft, as it will be once it has warmed up; `residents` are those with it."""
        resident = NewResident(job_id, promised_bytes, self._predictor.sharing, at_s)
        resident.first_active_at_s = -math.inf
        view.take(resident)
        view.gpu_class = class_of(view, [*residents.values()])

    def gain(self, changed: Mapping[int, Residents]) -> float:
        """Speed gained if these GPUs had these residents, summed over jobs, times the GPUs of a job."""
        now = {number: self._speeds_at(self.places[number], residents) for number, residents in changed.items()}
        jobs = dict.fromkeys(job_id for number in changed for job_id in (*self._speeds[number], *now[number]))
        total = 0.0
        for job_id in jobs:
            before = [self._speeds[number][job_id] for number in self.places_of.get(job_id, ())]
            after = [speeds[job_id] for speeds in now.values() if job_id in speeds]
            after += [self._speeds[number][job_id] for number in self.places_of.get(job_id, ()) if number not in now]
            total += _of_job(after) - _of_job(before)
        return total

    def _speeds_at(self, place: Place, residents: Residents) -> Mapping[int, float]:
        profile = place.view.snapshot.gpu.mig_profile
        speeds = self._predictor.speeds(profile, tuple(residents.values()))
        return dict(zip(residents, speeds, strict=True))

    def added(self, places: Sequence[Place], co_runner: CoRunner) -> list[float]:
        """Speed gained on each of these GPUs alone by a job that joins its residents."""
        known = self._added.setdefault(co_runner, {})
        for place in places:
            if place.number not in known:
                before = sum(self._speeds[place.number].values())
                known[place.number] = self._total(place, place.residents, co_runner) - before
        return [known[place.number] for place in places]

    def added_beside(self, place: Place, residents: Residents, co_runner: CoRunner) -> float:
        """The same on one GPU, if these are its residents."""
        return self._total(place, residents, co_runner) - sum(self._speeds_at(place, residents).values())

    def _total(self, place: Place, residents: Residents, co_runner: CoRunner) -> float:
        profile = place.view.snapshot.gpu.mig_profile
        return sum(self._predictor.speeds(profile, (*residents.values(), co_runner)))


def _of_job(speeds: Sequence[float]) -> float:
    """What a job with these speeds on its GPUs makes of them."""
    return len(speeds) * min(speeds) if speeds else 0.0
