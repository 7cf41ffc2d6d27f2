"""Bringing the daemon up: what is found of earlier attempts, and which GPUs it gets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_job
from cotenant.core.errors import BackendError, UnknownName, UsageError
from cotenant.core.events import AttemptExited, AttemptStarted
from cotenant.core.job import Attempt, AttemptExit, ProcessId, Queued, Running, Starting
from cotenant.core.placement import Placement
from cotenant.core.ports import AttemptRef, RecoveredAttempt
from cotenant.daemon.config import loader as layers
from cotenant.daemon.serve import serve
from cotenant.daemon.setup import open_gpus, scaled_options
from cotenant.daemon.startup import recovered_reports
from cotenant.scheduling import recovery

REF = AttemptRef(job_id=1, attempt=1)
STARTED = AttemptStarted(at_s=1.0, cause="t", job_id=1, attempt=1, process=ProcessId(pid=1, start_ticks=1, boot_id="b"))
EXITED = AttemptExited(
    at_s=2.0,
    cause="t",
    job_id=1,
    attempt=1,
    exit=AttemptExit(exit_code=0, signal=None, reason="exited"),
    peak_observed_bytes={},
)


@pytest.mark.parametrize(
    ("state", "started", "exited", "reports"),
    [
        pytest.param(Starting, STARTED, None, ["AttemptStarted"], id="started meanwhile"),
        pytest.param(Starting, STARTED, EXITED, ["AttemptStarted", "exited"], id="over meanwhile"),
        pytest.param(Starting, None, EXITED, ["exited"], id="could not start"),
        pytest.param(Starting, None, None, ["never-ran"], id="never launched"),
        pytest.param(Running, STARTED, None, [], id="still runs"),
        pytest.param(Running, STARTED, EXITED, ["exited"], id="ended meanwhile"),
        pytest.param(Running, None, None, ["lost"], id="files gone"),
    ],
)
def test_recovered_attempts_become_events(state, started, exited, reports):
    job = replace(a_job(1), state=state(attempt=1))
    found = recovered_reports([job], [RecoveredAttempt(ref=REF, started=started, exited=exited)], at_s=3.0)
    kinds = [event.exit.reason if isinstance(event, AttemptExited) else type(event).__name__ for event in found]
    assert kinds == reports


def test_an_attempt_that_never_ran_is_launched_again_unchanged():
    placement = Placement(job_id=1, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=5)
    end = AttemptExit(exit_code=None, signal=None, reason="never-ran", detail="the daemon ended before it started")
    attempt = Attempt(number=1, placement=placement, placed_at_s=0.0, ended_at_s=1.0, exit=end)
    job = replace(a_job(1), attempts=(attempt,), min_memory_bytes=7, state=Queued(since_s=0.0))
    assert recovery.next_step(job) == recovery.Retry(
        min_memory_bytes=7, exclusive=False, reason="retry: the daemon ended before it started"
    )


def test_seconds_in_options_count_virtual_time():
    scaled = scaled_options("most-memory", {"warmup_s": 30.0, "smact_limit": 0.5}, 60.0)
    assert (scaled["warmup_s"], scaled["smact_limit"], scaled["reserve_after_s"]) == (0.5, 0.5, 1800.0 / 60)
    assert scaled_options("most-memory", {"warmup_s": 30.0}, 1.0) == {"warmup_s": 30.0}
    assert scaled_options("exclusive", {}, 60.0) == {}


def with_gpus(**settings):
    return layers.load([], {}, {"gpus": settings})


def test_a_simulated_server_is_created_once_and_reopened(tmp_path):
    config = with_gpus(simulate="2xA100-40GB", time_scale=5.0)
    backend, env = open_gpus(config, tmp_path)
    uuids = [gpu.uuid for gpu in backend.inventory()]
    assert env == {"COTENANT_SIM_SERVER": str(tmp_path / "simulated")}
    again, _ = open_gpus(with_gpus(backend="simulated", time_scale=5.0), tmp_path)
    assert [gpu.uuid for gpu in again.inventory()] == uuids


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        pytest.param(
            {"simulate": "3xA100-40GB", "time_scale": 5.0}, "server `2xA100-40GB`, time scale 5", id="number of GPUs"
        ),
        pytest.param({"simulate": "2xA100-40GB"}, "time scale 5", id="time scale"),
        pytest.param({"simulate": "2xA100-40GB", "backend": "nvml"}, "cannot be simulated", id="contradiction"),
    ],
)
def test_a_simulated_server_that_differs_from_the_existing_one_is_refused(tmp_path, settings, error):
    open_gpus(with_gpus(simulate="2xA100-40GB", time_scale=5.0), tmp_path)
    with pytest.raises(UsageError, match=error):
        open_gpus(with_gpus(**settings), tmp_path)


def test_a_partly_created_server_is_created_again(tmp_path):
    open_gpus(with_gpus(simulate="2xA100-40GB"), tmp_path)
    (tmp_path / "simulated" / "requested.txt").unlink()
    backend, _ = open_gpus(with_gpus(simulate="1xA100-40GB"), tmp_path)
    assert len(backend.inventory()) == 1


def test_a_server_of_an_earlier_version_is_used(tmp_path):
    open_gpus(with_gpus(simulate="2xA100-40GB"), tmp_path)
    folder = tmp_path / "simulated"
    (folder / "requested.txt").rename(folder / "asked.txt")
    backend, _ = open_gpus(with_gpus(backend="simulated"), tmp_path)
    assert len(backend.inventory()) == 2
    with pytest.raises(UsageError, match="`2xA100-40GB`"):
        open_gpus(with_gpus(simulate="1xA100-40GB"), tmp_path)


def test_simulated_without_gpus_hints_at_the_option(tmp_path):
    with pytest.raises(UsageError) as caught:
        open_gpus(with_gpus(backend="simulated"), tmp_path)
    assert caught.value.hint == "add e.g. --simulate 4xA100-40GB"


def test_without_a_gpu_the_error_hints_at_simulation(tmp_path, monkeypatch):
    monkeypatch.setattr("cotenant.gpus.nvml.create", no_gpu)
    with pytest.raises(BackendError) as caught:
        open_gpus(with_gpus(), tmp_path)
    assert caught.value.hint == "try it without one: cotenant daemon --simulate 4xA100-40GB"


def no_gpu(_):
    raise BackendError("no driver")


@pytest.mark.parametrize(
    ("section", "key", "kind"),
    [("estimates", "estimator", "estimator"), ("engine", "name", "engine"), ("gpus", "backend", "GPU backend")],
)
def test_an_unknown_plug_in_is_refused_at_startup(tmp_path, section, key, kind):
    config = layers.load([], {}, {section: {key: "oracle"}, "daemon": {"state_dir": str(tmp_path)}})
    with pytest.raises(UnknownName, match=f"no {kind} named `oracle`"):
        serve(config, tmp_path / "sock")
