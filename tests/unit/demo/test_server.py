"""The demo's server, as far as it is plain computation; the rest is in tests/e2e."""

from __future__ import annotations

import dataclasses

import pytest

from builders import a_job
from cotenant.core.job import Done, Queued
from cotenant.daemon.config.paths import config_files
from cotenant.demo import server
from cotenant.demo.server import TICK_S, DemoStatus, window_s


@pytest.mark.parametrize(
    ("states", "total", "over"),
    [
        pytest.param((Done(outcome="completed", at_s=1),), 1, True, id="all done"),
        pytest.param((Done(outcome="failed", at_s=1), Queued(since_s=0)), 2, False, id="one waits"),
        pytest.param((Done(outcome="completed", at_s=1),), 2, False, id="one has not come"),
        pytest.param((), 2, False, id="none has come"),
    ],
)
def test_a_run_ends_when_all_jobs_have_ended(states, total, over):
    jobs = [dataclasses.replace(a_job(i), state=state) for i, state in enumerate(states)]
    assert DemoStatus(elapsed_s=0, total=total, jobs=jobs, gpus=()).is_over is over


@pytest.mark.parametrize(
    ("scale", "wanted_s"),
    [
        pytest.param(10, 3.0, id="as long as usual on the server"),
        pytest.param(10_000, 2 * TICK_S, id="but never without a reading in it"),
    ],
)
def test_window_of_readings(scale, wanted_s):
    assert window_s(scale) == pytest.approx(wanted_s)


def test_the_demo_reads_no_configuration_of_the_user_or_the_machine(tmp_path):
    """On a machine with a daemon of its own, the demo's took its port or its hosts."""
    assert {file.is_relative_to(tmp_path) for file in config_files(server._own_env(tmp_path, 60.0))} == {True}
