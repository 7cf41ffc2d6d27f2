"""Jobs for which no GPU can be had for long enough are held until that changes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from builders import a_gpu
from cotenant.core.job import Held, Queued
from cotenant.core.placement import Placement
from cotenant.scheduling.fit_check import Supply
from cotenant.scheduling.manager import Manager
from cotenant.scheduling.policies import create
from managers import Life, launches

HOUR_S = 3600.0


def reason(life, job_id=1):
    return life.manager.explain(job_id).reason


def test_a_job_that_is_longer_than_gpus_can_be_had_for_is_held_without_a_gpu():
    life = Life(gpus=0)
    life.manager.supply = Supply("none yet", 2 * HOUR_S)
    for job_id, limit_s in ((1, 3 * HOUR_S), (2, 2 * HOUR_S), (3, None)):
        life.submit(job_id, time_limit_s=limit_s)
    life.sample()
    assert life.state(1) is Held
    assert reason(life) == "held: its time limit of 3h00m is longer than the 2h00m of an allocation"
    assert [job.id for job in life.manager.queue()] == [2, 3]
    assert reason(life, 2).endswith("none yet")


@pytest.mark.parametrize("longest_s", [3 * HOUR_S, math.inf])
def test_it_is_queued_again_when_gpus_can_be_had_for_longer(longest_s):
    life = Life(gpus=0)
    for supply_s, state in ((HOUR_S, Held), (longest_s, Queued), (HOUR_S, Held)):
        life.manager.supply = Supply("", supply_s)
        if not life.manager.jobs:
            life.submit(1, time_limit_s=2 * HOUR_S)
        life.sample()
        assert life.state() is state


def test_what_did_not_fit_the_last_gpus_stays_held_without_any():
    """Otherwise a pilot would request the same allocation for it again and again."""
    life = Life()
    life.submit(1, gib=60)
    assert life.state() is Held
    life.gpus = ()
    for supply_s in (math.inf, HOUR_S, 3 * HOUR_S, math.inf):
        life.manager.supply = Supply("", supply_s)
        life.sample()
        assert life.state() is Held
    life.gpus = (a_gpu(0, 80),)
    assert launches(life.sample()) == [1]


def test_a_gang_is_held_where_no_host_has_as_many_gpus():
    life = Life(gpus=0)
    life.manager = Manager(replace(create("first-fit", {"warmup_s": 0}), one_node=True))
    life.gpus = tuple(replace(a_gpu(index), server=f"n{index % 2}") for index in range(4))
    life.sample(used=(0,) * 4)
    life.submit(1, gpus=3)
    assert (life.state(), reason(life)) == (Held, "held: needs 3 GPUs of one host, no host has more than 2")
    life.gpus = tuple(replace(gpu, server="n0") for gpu in life.gpus)
    assert launches(life.sample(used=(0,) * 4)) == [1]


class Careless:
    """A policy of another package, which places every job on the first GPU."""

    name = "careless"

    def decide(self, queue, server):
        return [
            Placement(job_id=job.id, gpu_uuids=(server.gpus[0].gpu.uuid,), sharing="time-sliced", promised_bytes=2**30)
            for job in queue
        ]


def test_a_policy_that_does_not_look_at_the_time_is_refused_its_placement():
    life = Life(gpus=0)
    life.manager = Manager(Careless())
    life.gpus = (replace(a_gpu(), available_until_s=600.0),)
    life.sample()
    life.submit(1, gib=1, time_limit_s=HOUR_S)
    assert life.state() is Queued
    said = "placement by policy `careless` refused: its time limit is 1h00m, and its GPUs have 10m00s left"
    assert reason(life) == said
    assert launches(life.submit(2, gib=1, time_limit_s=600.0)) == [2]
    assert launches(life.submit(3, gib=1)) == [3]
