"""Paused attempts leave their GPUs and come back, by a stand-in for `cuda-checkpoint` and with real processes."""

from __future__ import annotations

import subprocess

import pytest

from cotenant.core.errors import BackendError
from cotenant.core.events import AttemptExited, AttemptStarted
from cotenant.engines import cuda_suspension
from cotenant.osutil import procfs
from cotenant.scheduling.overrun import OVERRUN_STOP
from engine_bench import TIMEOUT_S, opened, ref, wait_until
from fake_cuda_checkpoint import FakeCudaCheckpoint

ALL = ["lock", "checkpoint", "restore", "unlock"]


@pytest.fixture
def cuda(tmp_path):
    return FakeCudaCheckpoint(tmp_path)


@pytest.fixture
def bench(tmp_path, cuda, monkeypatch):
    monkeypatch.setattr(cuda_suspension, "RETRY_S", 0.05)
    with opened("local", tmp_path / "state") as bench:
        bench.engine.suspender.use(cuda.program)
        yield bench


@pytest.fixture
def pid(bench, cuda):
    """The process of a job that makes steps."""
    bench.launch(*cuda.job)
    bench.wait(AttemptStarted)
    wait_until(lambda: sum(cuda.steps.values()) >= 2)
    return next(iter(cuda.steps))


def is_stopped(pid):
    stat = procfs.read_stat(pid)
    return stat is not None and stat.state == "T"


def makes_steps(cuda, pid):
    before = cuda.steps[pid]
    wait_until(lambda: cuda.steps[pid] > before)
    return True


def mark(tmp_path):
    return tmp_path / "state" / "attempts" / "1" / "1" / cuda_suspension.MARK


def is_idle(bench):
    return not bench.engine.suspender._wanted


def test_a_paused_attempt_is_off_its_gpu_until_it_is_resumed(bench, cuda, pid, tmp_path):
    bench.engine.pause(ref())
    wait_until(lambda: is_stopped(pid))
    assert (cuda.states, cuda.log) == ({pid: "checkpointed"}, ["lock", "checkpoint"])
    assert mark(tmp_path).exists()
    bench.engine.resume(ref())
    assert makes_steps(cuda, pid)
    wait_until(lambda: is_idle(bench))
    assert (cuda.states, cuda.log) == ({pid: "running"}, ALL)
    assert not mark(tmp_path).exists()
    cuda.let("finish")
    assert bench.wait(AttemptExited).exit.exit_code == 0


@pytest.mark.parametrize(
    ("names", "log"),
    [
        pytest.param(["fail-lock"], ["fail lock"], id="lock"),
        pytest.param(["fail-checkpoint"], ["lock", "fail checkpoint", "unlock"], id="checkpoint"),
    ],
)
def test_an_attempt_that_cannot_be_suspended_is_paused_and_runs_on(bench, cuda, pid, tmp_path, names, log):
    cuda.let(*names)
    bench.engine.pause(ref())
    wait_until(lambda: is_stopped(pid))
    assert (cuda.states, cuda.log) == ({pid: "running"}, log)
    assert not mark(tmp_path).exists()
    bench.engine.resume(ref())
    assert makes_steps(cuda, pid)


def test_a_process_that_the_driver_leaves_in_a_bad_state_loses_its_attempt(bench, cuda, pid):
    cuda.let("break-checkpoint")
    bench.engine.pause(ref())
    ended = bench.wait(AttemptExited)
    assert ended.exit.reason == "stopped"
    assert ended.exit.detail == (
        f"{OVERRUN_STOP}: suspended, and not restored to its GPU: process {pid} is in the state `failed`"
    )


@pytest.mark.parametrize("action", ["restore", "unlock"])
def test_a_step_that_fails_on_the_way_back_is_repeated(bench, cuda, pid, action):
    bench.engine.pause(ref())
    wait_until(lambda: is_stopped(pid))
    cuda.let(f"fail-{action}")
    bench.engine.resume(ref())
    wait_until(lambda: cuda.log.count(f"fail {action}") >= 2)
    steps = cuda.steps[pid]
    assert cuda.steps[pid] == steps
    cuda.mend(f"fail-{action}")
    assert makes_steps(cuda, pid)
    assert [line for line in cuda.log if not line.startswith("fail")] == ALL


@pytest.mark.parametrize("action", ["restore", "unlock"])
def test_an_attempt_that_is_not_restored_in_time_is_lost(bench, cuda, pid, action, monkeypatch):
    bench.engine.pause(ref())
    wait_until(lambda: is_stopped(pid))
    monkeypatch.setattr(cuda_suspension, "RESTORE_TIMEOUT_S", 0.3)
    cuda.let(f"fail-{action}")
    bench.engine.resume(ref())
    ended = bench.wait(AttemptExited)
    assert ended.exit.detail.startswith(OVERRUN_STOP)
    assert f"`{action}` of process {pid} failed: CUDA_ERROR_NOT_SUPPORTED" in ended.exit.detail
    assert len(bench.events(AttemptExited)) == 1


def test_all_processes_come_back_when_one_cannot_be_suspended(bench, cuda):
    job = " ".join(cuda.job)
    bench.launch("sh", "-c", f"{job} & {job} & wait")
    bench.wait(AttemptStarted)
    wait_until(lambda: len(cuda.steps) == 2)
    cuda.let("hang-checkpoint")
    bench.engine.pause(ref())
    wait_until(lambda: cuda.has("at-checkpoint"))
    assert sorted(cuda.states.values()) == ["locked", "locked"]  # all are locked before the first is copied
    cuda.let("fail-checkpoint")
    cuda.mend("hang-checkpoint")
    wait_until(lambda: all(map(is_stopped, cuda.states)))
    assert cuda.log == ["lock", "lock", "fail checkpoint", "unlock", "unlock"]
    bench.engine.resume(ref())
    assert all(makes_steps(cuda, pid) for pid in cuda.states)


def test_the_last_request_counts(bench, cuda, pid):
    cuda.let("hang-lock")
    bench.engine.pause(ref())
    wait_until(lambda: cuda.has("at-lock"))
    bench.engine.resume(ref())
    bench.engine.pause(ref())
    bench.engine.resume(ref())
    cuda.mend("hang-lock")
    wait_until(lambda: is_idle(bench))
    assert (cuda.states, cuda.log) == ({pid: "running"}, ALL)
    assert makes_steps(cuda, pid)


def test_a_resume_that_overtakes_a_pause_is_executed_after_it(bench, cuda, pid):
    cuda.let("hang-state")
    bench.engine.pause(ref())
    wait_until(lambda: cuda.has("at-state"))
    bench.engine.resume(ref())
    cuda.mend("hang-state")
    wait_until(lambda: is_idle(bench))
    assert (cuda.states, cuda.log) == ({pid: "running"}, ALL)
    assert makes_steps(cuda, pid)


def test_an_attempt_without_cuda_is_only_paused(bench, cuda, tmp_path):
    bench.launch("sh", "-c", "while :; do sleep 0.01; done")
    bench.wait(AttemptStarted)
    bench.engine.pause(ref())
    wait_until(lambda: (mark(tmp_path).parent / "paused").exists() and is_idle(bench))
    assert (cuda.log, mark(tmp_path).exists()) == ([], False)


def test_an_attempt_that_ends_meanwhile_leaves_others_alone(bench, cuda, pid):
    cuda.let("hang-lock")
    bench.engine.pause(ref())
    wait_until(lambda: cuda.has("at-lock"))
    bench.engine.stop(ref(), reason="cancelled", grace_s=0)
    assert bench.wait(AttemptExited).exit.detail == "cancelled"
    bench.launch("sh", "-c", f"echo >{cuda.folder}/next; while :; do sleep 0.01; done", job_id=2)
    wait_until(lambda: cuda.has("next"))
    cuda.mend("hang-lock")
    wait_until(lambda: is_idle(bench))
    second = bench.wait(AttemptStarted, 2).process.pid
    assert not any(is_stopped(other) for other in procfs.descendants(second))
    bench.engine.resume(ref())  # of an attempt that is over
    wait_until(lambda: is_idle(bench))


def test_a_suspended_attempt_is_restored_to_save_its_state(bench, cuda):
    script = cuda.folder / "saves.py"
    text = (cuda.folder / "job.py").read_text()
    script.write_text(
        text.replace("while not", "signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))\nasked = []\nwhile not")
        .replace('"running":\n', '"running":\n        if asked:\n            sys.exit(85)\n')
    )  # fmt: skip
    bench.launch(cuda.job[0], str(script), str(cuda.folder), checkpoint_signal="USR1")
    bench.wait(AttemptStarted)
    wait_until(lambda: cuda.steps)
    bench.engine.pause(ref())
    wait_until(lambda: is_stopped(next(iter(cuda.steps))))
    bench.engine.stop(ref(), reason="moved", grace_s=TIMEOUT_S, checkpoint=True)
    assert bench.wait(AttemptExited).exit.exit_code == 85


def test_a_suspended_attempt_is_lost_where_the_setting_is_gone(bench, cuda, pid):
    bench.engine.pause(ref())
    wait_until(lambda: is_stopped(pid) and is_idle(bench))
    bench.engine.suspender._program = None
    bench.engine.resume(ref())
    assert "`engine.cuda_checkpoint` is no longer set" in bench.wait(AttemptExited).exit.detail


@pytest.mark.parametrize(
    ("text", "match"),
    [
        pytest.param(None, "cannot run `.*/other`", id="not there"),
        pytest.param("#!/bin/sh\necho --toggle --pid", "has no --get-state and no --action", id="of driver 550"),
        pytest.param("no program", "cannot run `.*/other`", id="no program"),
    ],
)
def test_a_program_that_is_not_there_or_too_old_is_refused(bench, tmp_path, text, match):
    if text is not None:
        (tmp_path / "other").write_text(text)
        (tmp_path / "other").chmod(0o755)
    with pytest.raises(BackendError, match=match):
        bench.engine.suspender.use(str(tmp_path / "other"))


def test_a_program_that_is_still_at_work_is_waited_for(bench, cuda, pid, tmp_path, monkeypatch):
    """As after a daemon that was killed while the program waited for the lock."""
    cuda.let("hang-lock")
    with subprocess.Popen([cuda.program, "--action", "lock", "--pid", str(pid)]) as program:
        wait_until(lambda: cuda.has("at-lock"))
        mark(tmp_path).touch()
        found, looked = bench.engine.suspender._is_being_changed, []
        monkeypatch.setattr(bench.engine.suspender, "_is_being_changed", lambda pid: looked.append(pid) or found(pid))
        bench.engine.resume(ref())
        wait_until(lambda: len(looked) > 1 or is_idle(bench))
        is_waiting = mark(tmp_path).exists()
        cuda.mend("hang-lock")
        assert program.wait(TIMEOUT_S) == 0
    assert is_waiting
    wait_until(lambda: is_idle(bench))
    assert (cuda.states, cuda.log) == ({pid: "running"}, ["lock", "unlock"])
    assert makes_steps(cuda, pid)
