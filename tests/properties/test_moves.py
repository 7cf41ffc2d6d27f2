"""Moves that the planner rules out early are worth nothing."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from builders import a_job, a_resident, a_snapshot
from cotenant.core.gpu import Resident
from cotenant.scheduling import moves, policies
from cotenant.scheduling.moves import RunningJob, move_planner
from cotenant.scheduling.prediction.history import WorkloadHistory

RAN_S = 600.0
SERVERS = 250


def a_server(rng):
    """GPUs with jobs of one or two GPUs, all of which run and some of which can be moved; and jobs that wait."""
    on_gpu: list[list[Resident]] = [[] for _ in range(rng.randint(2, 6))]
    running = {}
    for job_id in range(1, rng.randint(3, 10)):
        wanted = rng.choice([1, 1, 1, 2])
        room = [residents for residents in on_gpu if len(residents) < 3]
        if len(room) < wanted:
            break
        places = rng.sample(room, wanted)
        resident = a_resident(8, 8, job_id=job_id, smact=rng.choice([0.1, 0.3, 0.6, 0.9]), first_active_at_s=1.0)
        for residents in places:
            residents.append(replace(resident, gpus=wanted))
        job = a_job(job_id, 8, gpus=wanted, checkpoint_signal=rng.choice(["TERM", None]))
        running[job_id] = RunningJob(job, RAN_S, lambda: RAN_S)
    gpus = [
        a_snapshot(place, residents=tuple(residents), at_s=RAN_S, smact=0.5) for place, residents in enumerate(on_gpu)
    ]
    waiting = [a_job(100 + i, rng.choice([8, 30]), gpus=rng.choice([1, 1, 2])) for i in range(rng.choice([0, 1, 3]))]
    return gpus, running, waiting


def planned(server):
    planner = move_planner(policies.create("marginal-gain"), WorkloadHistory())
    return planner.plan(*server, {}, RAN_S)


def test_the_same_move_is_found_as_by_looking_at_every_gpu(monkeypatch):
    servers = [a_server(random.Random(seed)) for seed in range(SERVERS)]
    found = [planned(server) for server in servers]
    monkeypatch.setattr(moves, "ROUNDING", math.inf)
    assert [planned(server) for server in servers] == found
    reasons = [move.reason for move in found if move is not None]
    assert len([reason for reason in reasons if "room for job" in reason]) > SERVERS // 20
    assert len([reason for reason in reasons if "another GPU" in reason]) > SERVERS // 20
