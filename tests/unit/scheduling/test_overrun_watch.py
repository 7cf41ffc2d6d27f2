"""The policy that acts on who outgrows a promise before a neighbor fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_resident, a_snapshot
from cotenant.core.events import Pause, Resume, Stop
from cotenant.core.units import GiB
from cotenant.scheduling.overrun_watch import OverrunPolicy, OverrunWatch
from managers import Life

RISKY = a_snapshot(residents=(a_resident(4, 32), a_resident(16, 2, job_id=1)))
CALM = a_snapshot(residents=(a_resident(4, 4), a_resident(16, 2, job_id=1)))


def watching(action, samples=1):
    return OverrunWatch(OverrunPolicy(action=action, samples=samples), stop_grace_s=10.0)


@pytest.mark.parametrize(
    ("residents", "foreign", "offenders"),
    [
        pytest.param([(4, 32), (16, 2)], 0, [100], id="takes what its neighbor was promised"),
        pytest.param([(4, 20), (16, 2)], 0, [], id="takes what nobody was promised"),
        pytest.param([(4, 38)], 4, [], id="alone"),
        pytest.param([(4, 12), (4, 20), (16, 2)], 0, [101, 100], id="the largest excess first"),
        pytest.param([(20, 21), (20, 2)], 0, [], id="within its margin"),
        pytest.param([(20, 15), (20, 2)], 8, [], id="a stranger takes it"),
    ],
)
def test_an_overrun_is_an_offense_where_promises_are_at_risk(residents, foreign, offenders):
    watch = watching("stop", samples=2)
    gpu = a_snapshot(
        foreign=foreign,
        residents=tuple(a_resident(*sizes, job_id=100 + place) for place, sizes in enumerate(residents)),
    )
    assert watch.observe([gpu]) == []
    assert [offense.resident.job_id for offense in watch.observe([gpu])] == offenders


def test_samples_in_a_row_are_counted():
    watch = watching("stop", samples=2)
    assert [len(watch.observe([gpu])) for gpu in (RISKY, CALM, RISKY, RISKY, RISKY)] == [0, 0, 0, 1, 1]


def test_report_does_nothing():
    watch = watching("report")
    assert [watch.commands(lambda: [RISKY], at_s) for at_s in (1.0, 2.0)] == [[], []]


def test_pause_lasts_as_long_as_promises_are_at_risk():
    watch = watching("pause")
    commands = [watch.commands(lambda gpu=gpu: [gpu], 1.0) for gpu in (RISKY, RISKY, CALM, CALM)]
    assert [[type(command) for command in found] for found in commands] == [[Pause], [], [Resume], []]
    assert commands[0][0].cause == "exceeded its promise: held 32.0 GiB, 4.0 GiB promised, neighbors miss 8.0 GiB"


def test_two_gangs_that_outgrow_one_gpu_each_do_not_wait_for_each_other():
    servers = [
        a_snapshot(0, residents=(a_resident(4, 32, job_id=1), a_resident(16, 2, job_id=2))),
        a_snapshot(1, residents=(a_resident(16, 2, job_id=1), a_resident(4, 32, job_id=2))),
    ]
    watch = watching("pause")
    commands = [watch.commands(lambda: servers, at_s) for at_s in (1.0, 2.0)]
    assert [[(type(command), command.job_id) for command in found] for found in commands] == [[(Pause, 1)], []]


def test_an_mps_client_is_never_paused():
    """A stopped client can block the server that runs the kernels of all."""
    mps = replace(RISKY, residents=tuple(replace(resident, sharing="mps") for resident in RISKY.residents))
    assert watching("pause").commands(lambda: [mps], 1.0) == []


def test_stop_is_sent_to_the_largest_excess_and_repeated_after_six_grace_periods():
    both = a_snapshot(residents=(a_resident(4, 12), a_resident(4, 20, job_id=101), a_resident(16, 2, job_id=1)))
    watch = watching("stop")
    commands = [watch.commands(lambda: [both], at_s) for at_s in (1.0, 2.0, 60.0, 61.0)]
    assert [[(type(command), command.job_id) for command in found] for found in commands] == [
        [(Stop, 101)],
        [],
        [],
        [(Stop, 101)],
    ]


def test_a_gang_is_stopped_once_for_all_of_its_gpus():
    gpus = [a_snapshot(i, residents=(a_resident(4, 32, job_id=9), a_resident(16, 2, job_id=i))) for i in range(2)]
    watch = OverrunWatch(OverrunPolicy(action="stop", samples=1), stop_grace_s=0.0)
    assert [command.job_id for command in watch.commands(lambda: gpus, 1.0)] == [9]


def test_the_manager_pauses_who_takes_what_a_neighbor_was_promised():
    life = Life(overrun=OverrunPolicy(action="pause", samples=2))
    life.submit(1, gib=16)
    life.submit(2, gib=8, uid=2000)
    for job_id in (1, 2):
        life.start(job_id)
    found = [life.sample(used=(33,), observed=((1, 1, 0, 1), (2, 1, 0, 32)), at_s=at_s) for at_s in (1.0, 2.0)]
    assert [[type(command) for command in commands] for commands in found] == [[], [Pause]]
    assert ", paused until all promises fit" in life.manager.explain(2).reason
    life.exit(1, 1)
    (resume,) = life.sample(used=(32,), observed=((2, 1, 0, 32),), at_s=3.0)
    assert (type(resume), resume.job_id) == (Resume, 2)
    assert life.job(2).attempts[0].placement.promised_bytes == 8 * GiB
