"""Functions as jobs of a real daemon, beside what submitit's own local executor makes of them."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import pytest

submitit = pytest.importorskip("submitit", reason="needs submitit")
import cloudpickle  # noqa: E402 (submitit needs it)
from submitit.helpers import Checkpointable  # noqa: E402

from cotenant.core.errors import DaemonUnreachable, UsageError  # noqa: E402
from cotenant.submitit import Executor  # noqa: E402
from cotenant.submitit.job import DaemonWatcher  # noqa: E402
from sites import TIMEOUT_S, open_site  # noqa: E402

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a job cannot import this module


@pytest.fixture(scope="module")
def server():
    with open_site() as site:
        site.env["COTENANT_POLICY__OPTIONS__WARMUP_S"] = "0"
        site.start(simulate="4xA100-40GB")
        with mock.patch.dict(os.environ, site.env):
            yield site


@pytest.fixture
def executor(server, tmp_path):
    made = submitit.AutoExecutor(tmp_path / "ours", cluster="cotenant")
    made.update_parameters(timeout_min=60, cotenant_gpu_mem="1G")
    return made


def until(holds, what):
    give_up_s = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < give_up_s, f"never: {what}"
        time.sleep(0.05)


def divide(a, b=1):
    print("dividing", a)
    return a / b


class Interrupted(Checkpointable):
    """Waits in its first `waits` runs for the signal that `send` makes somebody send, and counts its runs."""

    def __init__(self, waits, send):
        self.waits = waits
        self.send = send
        self.runs = 0

    def __call__(self):
        self.runs += 1
        if self.runs <= self.waits:
            self.send()
            while True:
                signal.pause()
        return self.runs


def to_itself():
    """Submitit's signal, which comes before a time limit."""
    os.kill(os.getpid(), signal.SIGUSR2)


def observed(executor):
    """What a program of submitit's sees of an executor."""
    good, bad = executor.map_array(divide, [6, 1], [3, 0])
    with executor.batch():
        batched = [executor.submit(divide, 8, b=b) for b in (2, 4)]
        with pytest.raises(AttributeError) as too_early:
            _ = batched[0].job_id
    interrupted = executor.submit(Interrupted(1, to_itself))
    with pytest.raises(submitit.core.utils.FailedJobError) as failed:
        bad.result()
    with pytest.warns(UserWarning, match="empty job array"):
        empty = executor.map_array(divide, [], [])
    return {
        "result": good.result(),
        "results": good.results(),
        "exception": good.exception(),
        "failure": type(bad.exception()).__name__,
        "trace": "ZeroDivisionError: division by zero" in str(failed.value),
        "batch": [job.result() for job in batched],
        "too early": str(too_early.value),
        "resumed": interrupted.result(),
        "done": [interrupted.done(), bad.done()],
        "stdout": "dividing 6" in good.stdout(),
        "stderr": ["ZeroDivisionError" in bad.stderr(), good.stderr()],
        "submission": (good.submission().args, batched[1].submission().kwargs, good.submission().function(4, 2)),
        "awaited": asyncio.run(good.awaitable().result(poll_interval=0.05)),
        "unpickled": pickle.loads(pickle.dumps(good)).result(),
        "tasks": (good.num_tasks, good.task(0) is good, empty),
        "files": sorted(path.name.partition("_")[2] for path in good.paths.folder.glob(f"{good.job_id}_*")),
    }


def test_it_behaves_as_submitits_own(executor, tmp_path):
    local = submitit.AutoExecutor(tmp_path / "local", cluster="local")
    local.update_parameters(timeout_min=60)
    assert observed(executor) == observed(local)


def test_a_requeued_function_goes_on_from_its_checkpoint(executor, tmp_path):
    sign = tmp_path / "sign"
    job = executor.submit(Interrupted(1, sign.touch))
    until(sign.exists, "it runs")
    assert not job.done(force_check=True)
    job._interrupt()
    assert job.result() == 2


def test_a_time_limit_makes_checkpoints_as_often_as_allowed(server, tmp_path):
    executor = Executor(tmp_path / "%j" / "log", max_num_timeout=1)
    executor.update_parameters(timeout_min=1, gpu_mem="1G", name="over", signal_delay_s=1)
    job = executor.submit(Interrupted(9, to_itself))
    assert "timed-out too many times" in str(job.exception())
    view = server.client.job(int(job.job_id))
    assert (view["state"], view["attempts"], view["name"], view["time_limit_s"]) == ("FAILED", 2, "over", 60.0)
    assert job.paths.stdout == tmp_path / job.job_id / "log" / f"{job.job_id}_0_log.out"
    assert job.stdout().count("Calling checkpoint method") == 2


def needs_more():
    attempt = int(os.environ["COTENANT_ATTEMPT"])
    if attempt == 1:
        kind = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})
        raise kind(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 40.00 GiB of which 1.00 GiB "
            "is free. Including non-PyTorch memory, this process has 4.00 GiB memory in use."
        )
    return attempt, int(os.environ["COTENANT_GPU_MEM_MIB"])


def test_a_function_that_runs_out_of_gpu_memory_runs_again_with_more(server, executor):
    job = executor.submit(needs_more)
    attempt, memory_mib = job.result()
    assert attempt == 2
    assert memory_mib > 6 * 1024
    first, second = server.client.job(int(job.job_id))["attempt_list"]
    assert first["exit"]["oom"]["exception"]
    assert second["exit"]["exit_code"] == 0


def wait_for(sign):
    while not sign.exists():
        time.sleep(0.05)
    return "seen"


def test_a_canceled_job_has_no_result(executor, tmp_path):
    job = executor.submit(wait_for, tmp_path / "never")
    job.cancel()
    assert isinstance(job.exception(), submitit.core.utils.UncompletedJobError)
    assert job.state == "CANCELLED"
    job.cancel()  # as of one that has ended: nothing


def test_the_result_of_an_attempt_is_not_that_of_the_job(executor, tmp_path):
    job = executor.submit(wait_for, tmp_path / "sign")
    until(lambda: job.paths.stdout.exists() and "Loading pickle" in job.stdout(), "it runs")
    job.paths.result_pickle.write_bytes(pickle.dumps(("error", "of an attempt that is followed by another")))
    assert not job.done(force_check=True)
    (tmp_path / "sign").touch()
    assert job.result() == "seen"


def test_files_of_an_older_daemons_job_are_not_taken_for_its_own(server, executor, tmp_path):
    last = int(executor.submit(divide, 1).job_id)
    folder = tmp_path / "ours"
    for name in (f"{last + n}_{kind}.pkl" for n in (1, 2) for kind in ("0_result", "submitted")):
        (folder / name).write_bytes(pickle.dumps(("success", "old")))
    job = executor.submit(divide, 9, 3)
    assert (int(job.job_id), job.result()) == (last + 1, 3.0)
    executor.update_parameters(gpus_per_node=5)  # the server has 4
    job = executor.submit(divide, 9, 3)
    job.cancel()
    assert isinstance(job.exception(), submitit.core.utils.UncompletedJobError)


def test_a_wait_outlasts_the_daemon(server, executor, tmp_path):
    job = executor.submit(wait_for, tmp_path / "sign")
    found = []
    waiting = threading.Thread(target=lambda: found.append(job.result()), daemon=True)
    waiting.start()
    server.kill()
    with pytest.raises(DaemonUnreachable):
        job.cancel()
    assert not job.done(force_check=True)
    server.start(simulate="4xA100-40GB")
    (tmp_path / "sign").touch()
    waiting.join(TIMEOUT_S)
    assert found == ["seen"]


def test_an_id_that_another_daemon_used_is_read_anew(monkeypatch):
    monkeypatch.setattr("cotenant.submitit.job._views", lambda ids: {name: {"state": "COMPLETED"} for name in ids})
    watcher = DaemonWatcher()
    watcher.register_job("5")
    watcher.update()
    assert watcher.is_done("5", mode="cache")
    watcher.register_job("5")
    assert watcher.get_state("5", mode="cache") == "UNKNOWN"


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"gpus_per_node": 0}, "each job here has a GPU"),
        ({"nodes": 2}, "one process on one machine"),
        ({"tasks_per_node": 4}, "one process on one machine"),
        ({"partition": "gpu"}, "no such parameter: partition"),
        ({"gpu_mem": "much"}, "much"),
    ],
)
def test_what_cannot_be_had_is_refused(tmp_path, parameters, says):
    with pytest.raises((ValueError, UsageError), match=says):
        Executor(tmp_path).update_parameters(**parameters)


def test_what_has_no_effect_is_taken_with_a_warning(tmp_path):
    executor = Executor(tmp_path)
    with pytest.warns(UserWarning, match="cpus_per_task has no effect"):
        executor.update_parameters(cpus_per_task=4, name=None)
    assert executor.parameters == {"cpus_per_task": 4}


def test_large_pickles_are_refused(tmp_path):
    with pytest.raises(RuntimeError, match="pass paths of large data"):
        Executor(tmp_path, max_pickle_size_gb=1e-6).submit(len, bytes(10_000))
    assert list(tmp_path.iterdir()) == []


def test_a_daemon_alone_does_not_make_it_the_default():
    assert submitit.AutoExecutor.which() != "cotenant"


def test_the_signal_comes_before_the_limit(monkeypatch):
    """The timer of a job that may run 10 minutes; the job's real handlers are seen in the tests above."""
    from submitit.core.utils import DelayedSubmission, JobPaths

    from cotenant.submitit.environment import SIGNAL_DELAY_VARIABLE, CotenantJobEnvironment

    timers, handlers = [], {}
    monkeypatch.setattr(threading, "Timer", lambda *arguments: timers.append(arguments) or mock.Mock())
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    call = DelayedSubmission(divide, 1)
    for timeout_min, delay_s in ((10, "90"), (1, "90"), (float("inf"), "90")):
        monkeypatch.setenv(SIGNAL_DELAY_VARIABLE, delay_s)
        call.set_timeout(timeout_min, 3)
        CotenantJobEnvironment()._handle_signals(JobPaths(Path("/nonexistent")), call)
    assert [(seconds, arguments) for seconds, _, arguments in timers] == [
        (510.0, (os.getpid(), signal.SIGUSR2)),
        (30.0, (os.getpid(), signal.SIGUSR2)),
    ]
    assert handlers.keys() == {signal.SIGTERM, signal.SIGUSR2}
