"""What every engine honors, that of hosts with an agent over pipes, with real processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from cotenant.core.errors import UnknownName
from cotenant.core.events import AttemptExited, AttemptStarted
from cotenant.engines import ENGINES, create
from cotenant.osutil import procfs
from engine_bench import IGNORES_TERM, NAMES, TIMEOUT_S, opened, ref, wait_until
from running import is_running


@pytest.fixture(params=NAMES)
def bench(request, tmp_path):
    with opened(request.param, tmp_path) as bench:
        yield bench


def test_an_unknown_name_is_refused(tmp_path):
    with pytest.raises(UnknownName, match="no engine named `loacl`"):
        create("loacl", tmp_path)


@pytest.mark.parametrize(
    ("command", "code", "number"),
    [
        pytest.param(("true",), 0, None, id="success"),
        pytest.param(("sh", "-c", "exit 3"), 3, None, id="failure"),
        pytest.param(("sh", "-c", "kill -SEGV $$"), None, signal.SIGSEGV, id="signal"),
    ],
)
def test_an_exit_is_reported_with_code_and_signal(bench, command, code, number):
    bench.launch(*command)
    ended = bench.wait(AttemptExited)
    assert (ended.exit.exit_code, ended.exit.signal, ended.exit.reason) == (code, number, "exited")
    assert [type(event) for event in bench.reported] == [AttemptStarted, AttemptExited]
    assert bench.reported[0].at_s <= ended.at_s


@pytest.mark.parametrize(
    ("command", "spec", "detail"),
    [
        pytest.param(("no-such-thing",), {}, "no command named `no-such-thing`", id="not found"),
        pytest.param(("/no/such/file",), {}, "no such file: `/no/such/file`", id="no such file"),
        pytest.param(("/etc/passwd",), {}, "is not executable", id="not executable"),
        pytest.param(("true",), {"workdir": "/no/such/folder"}, "cannot enter the working directory", id="no folder"),
        pytest.param(("true",), {"stderr_path": "/no/such/folder/log"}, "cannot open", id="no log"),
    ],
)
def test_a_job_that_cannot_start_is_reported_with_the_reason(bench, command, spec, detail):
    bench.launch(*command, **spec)
    ended = bench.wait(AttemptExited)
    assert (ended.exit.reason, ended.exit.exit_code, ended.exit.signal) == ("not-started", None, None)
    assert detail in ended.exit.detail
    assert bench.reported == [ended]


def test_script_without_interpreter(bench, tmp_path):
    script = tmp_path / "script"
    script.write_text("echo no first line\n")
    script.chmod(0o755)
    bench.launch(str(script))
    ended = bench.wait(AttemptExited)
    assert "has no `#!` line" in ended.exit.detail
    assert bench.reported == [ended]


def test_a_paused_attempt_makes_no_progress_until_it_is_resumed(bench, tmp_path):
    count = tmp_path / "count"
    bench.launch("sh", "-c", f"(while :; do echo >>{count}; sleep 0.01; done) & while :; do sleep 0.01; done")
    bench.wait(AttemptStarted)
    wait_until(count.exists)
    bench.engine.pause(ref(1, 1))
    runner = bench.reported[0].process.pid

    def states():
        stats = [procfs.read_stat(pid) for pid in procfs.descendants(runner)]
        return {stat.state for stat in stats if stat is not None}

    # A stopped shell does not reap its `sleep` (Z), and one that is in `vfork` waits for a stopped child (D).
    wait_until(lambda: "T" in (found := states()) and found <= {"T", "Z", "D"})
    size = count.stat().st_size
    bench.engine.resume(ref(1, 1))
    wait_until(lambda: count.stat().st_size > size)
    bench.engine.stop(ref(1, 1), reason="end", grace_s=0)
    assert bench.wait(AttemptExited).exit.reason == "stopped"


def test_a_paused_attempt_is_stopped_with_its_own_handler(bench, tmp_path):
    ready = tmp_path / "ready"
    bench.launch("sh", "-c", f"trap 'exit 3' TERM; touch {ready}; while :; do sleep 0.01; done")
    bench.wait(AttemptStarted)
    wait_until(ready.exists)
    bench.engine.pause(ref(1, 1))
    bench.engine.stop(ref(1, 1), reason="end", grace_s=TIMEOUT_S)
    ended = bench.wait(AttemptExited)
    assert (ended.exit.reason, ended.exit.exit_code) == ("stopped", 3)


def test_nothing_is_paused_that_is_unknown_or_over(bench):
    bench.launch("true")
    bench.wait(AttemptExited)
    for attempt in (ref(1, 1), ref(9, 1)):
        bench.engine.pause(attempt)
        bench.engine.resume(attempt)


SIGNALED = """
trap 'echo shell 1 >>$0' USR1; trap 'echo shell 2 >>$0' USR2
(trap 'echo program 1 >>$0' USR1; trap 'echo program 2 >>$0' USR2; echo ready >>$0; while :; do sleep 0.05; done) &
while :; do wait; done
"""
"""A shell and a program that it runs; each says which signals it got."""


def test_a_signal_reaches_the_processes_that_it_is_meant_for(bench, tmp_path):
    log = tmp_path / "log"
    log.touch()
    bench.launch("sh", "-c", SIGNALED, str(log))
    wait_until(lambda: "ready" in log.read_text())

    def send(number, target, uid=None):
        return bench.engine.send_signal(ref(), number, target, uid=os.getuid() if uid is None else uid)

    assert send(signal.SIGKILL, "all", uid=os.getuid() + 1) == 0, "not the processes of another user"
    assert send(signal.SIGUSR1, "programs") >= 1
    wait_until(lambda: "program 1" in log.read_text())
    assert send(signal.SIGUSR2, "command") == 1
    wait_until(lambda: "shell 2" in log.read_text())
    # The smaller number is delivered first: the shell would have written of SIGUSR1 by now.
    assert sorted(log.read_text().splitlines()) == ["program 1", "ready", "shell 2"]
    send(signal.SIGUSR1, "all")
    wait_until(lambda: "shell 1" in log.read_text() and log.read_text().count("program 1") == 2)


def test_a_signal_reaches_a_command_without_children_and_leaves_our_own_process_alone(bench, tmp_path):
    progress = tmp_path / "progress"
    progress.touch()  # as the daemon does; without it the process that counts steps ends at once
    wait_for_signal = "import signal; signal.signal(signal.SIGUSR1, lambda *_: exit(7)); print('up', flush=True)"
    program = f"{wait_for_signal}; signal.pause()"
    bench.launch(sys.executable, "-c", program, progress="tqdm", env={"COTENANT_PROGRESS": str(progress)})
    wait_until(lambda: bench.output().exists() and "up" in bench.output().read_text())
    runner = bench.wait(AttemptStarted).process.pid
    wait_until(lambda: len(procfs.descendants(runner)) == 2)
    assert bench.engine.send_signal(ref(), signal.SIGUSR1, "programs", uid=os.getuid()) == 1
    assert bench.wait(AttemptExited).exit.exit_code == 7


def test_an_attempt_that_is_unknown_or_over_gets_no_signal(bench):
    bench.launch("true")
    bench.wait(AttemptExited)
    for attempt in (ref(1, 1), ref(9, 1)):
        assert bench.engine.send_signal(attempt, signal.SIGTERM, "all", uid=os.getuid()) == 0


def test_second_launch_starts_nothing(bench, tmp_path):
    command = ("sh", "-c", f"echo once >>{tmp_path}/runs; read line <{tmp_path}/gate")
    os.mkfifo(tmp_path / "gate")
    bench.launch(*command)
    bench.wait(AttemptStarted)
    bench.launch(*command)
    (tmp_path / "gate").write_text("go\n")
    bench.wait(AttemptExited)
    bench.launch(*command)
    bench.launch("true", job_id=2)  # whatever the second launch did would be told before this
    bench.wait(AttemptExited, 2)
    assert (tmp_path / "runs").read_text() == "once\n"
    assert len(bench.events(AttemptExited)) == len(bench.events(AttemptStarted)) == 1


def test_a_job_gets_its_environment(bench):
    bench.launch("env", env={"EXTRA": "daemon", "TWICE": "daemon"})
    bench.wait(AttemptExited)
    seen = dict(line.split("=", 1) for line in bench.output().read_text().splitlines())
    assert seen["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert seen["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert (seen["COTENANT_JOB_ID"], seen["COTENANT_ATTEMPT"]) == ("1", "1")
    assert seen["COTENANT_GPU_MEM_MIB"] == "3072"
    assert seen["EXTRA"] == "daemon"
    assert "HOME" not in seen  # the daemon's own environment stays with the daemon


def test_user_logs_are_appended_to(bench, tmp_path):
    log = tmp_path / "user.log"
    log.write_text("before\n")
    bench.launch("sh", "-c", "echo out; echo err >&2", stdout_path=str(log), stderr_path=str(log))
    bench.wait(AttemptExited)
    assert log.read_text() == "before\nout\nerr\n"


def test_own_logs_are_private(bench):
    bench.launch("echo", "hello")
    bench.wait(AttemptExited)
    out, err = map(Path, bench.engine.log_paths(ref()))
    assert (out.read_text(), err.read_text()) == ("hello\n", "")
    assert out.stat().st_mode & 0o077 == 0


def test_stop_sends_sigterm_first(bench):
    bench.launch("sh", "-c", "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.05; done")
    wait_until(lambda: bench.output().exists() and "ready" in bench.output().read_text())
    bench.engine.stop(ref(), reason="cancelled by ann", grace_s=TIMEOUT_S)
    ended = bench.wait(AttemptExited).exit
    assert (ended.reason, ended.exit_code, ended.detail) == ("stopped", 5, "cancelled by ann")
    assert "bye" in bench.output().read_text()


def test_stop_kills_after_the_grace_period(bench):
    bench.launch(*IGNORES_TERM)
    wait_until(lambda: bench.output().exists() and "ready" in bench.output().read_text())
    bench.engine.stop(ref(), reason="cancelled", grace_s=0.1)
    ended = bench.wait(AttemptExited).exit
    assert (ended.reason, ended.signal) == ("stopped", signal.SIGKILL)


def test_stop_reaches_grandchildren_in_other_sessions(bench, tmp_path):
    # A daemonized grandchild that ignores SIGTERM: own session, and its parent has ended.
    inner = f'trap "" TERM; echo $$ >{tmp_path}/pid; while :; do sleep 1; done'
    bench.launch("sh", "-c", f"(setsid sh -c '{inner}' &) ; while :; do sleep 1; done")
    pid = wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    bench.engine.stop(ref(), reason="cancelled", grace_s=0.1)
    bench.wait(AttemptExited)
    assert not is_running(pid)


def test_processes_left_by_a_job_are_killed(bench, tmp_path):
    bench.launch("sh", "-c", f"(setsid sleep 1000 & echo $! >{tmp_path}/pid); exit 4")
    assert bench.wait(AttemptExited).exit.exit_code == 4
    assert not is_running((tmp_path / "pid").read_text().strip())


def test_stop_of_unknown_and_ended_is_ignored(bench):
    bench.engine.stop(ref(77), reason="cancelled", grace_s=1)
    bench.launch("true")
    bench.wait(AttemptExited)
    bench.engine.stop(ref(), reason="cancelled", grace_s=1)
    assert bench.engine.recover([ref()])[0].exited.exit.reason == "exited"


def test_stop_at_once_after_launch(bench):
    """Whether the runner has started the job, has claimed the attempt, or is not even Python yet."""
    for job_id in range(1, 9):
        bench.launch("sleep", "1000", job_id=job_id)
        if job_id % 2:
            threading.Event().wait(0.003 * job_id)
        bench.engine.stop(ref(job_id), reason="cancelled", grace_s=0.5)
    for job_id in range(1, 9):
        ended = bench.wait(AttemptExited, job_id).exit
        assert (ended.reason, ended.detail) == ("stopped", "cancelled")


def test_a_job_over_its_time_limit_is_stopped(bench):
    bench.launch("sleep", "1000", time_limit_s=0.1)
    ended = bench.wait(AttemptExited).exit
    assert (ended.reason, ended.signal) == ("timeout", signal.SIGTERM)
    assert "0.1 s" in ended.detail


def test_an_oom_exit_has_evidence(bench, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "class OutOfMemoryError(RuntimeError): pass\n"
        "OutOfMemoryError.__module__ = 'torch'\n"
        "raise OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB. this process has 3.00 GiB"
        " memory in use.')\n"
    )
    bench.launch(sys.executable, str(script))
    evidence = bench.wait(AttemptExited).exit.oom
    assert evidence.exception
    assert (evidence.tried_bytes, evidence.in_use_bytes) == (2 * 2**30, 3 * 2**30)


def test_oom_output_of_an_earlier_attempt_is_no_evidence(bench, tmp_path):
    log = tmp_path / "log"
    log.write_text("Traceback (most recent call last):\n  x\ntorch.OutOfMemoryError: CUDA out of memory.\n")
    bench.launch("sh", "-c", "exit 1", stdout_path=str(log), stderr_path=str(log))
    evidence = bench.wait(AttemptExited).exit.oom
    assert not evidence.exception
    assert not evidence.message


@pytest.mark.parametrize("name", ENGINES.names())  # an agent tells owners of processes on its GPUs only
def test_owners_are_found_by_session_ancestors_and_environment(name, tmp_path):
    with opened(name, tmp_path) as bench:
        bench.launch("sh", "-c", "sleep 1000 & echo $!; (setsid sh -c 'echo $$; exec sleep 1000' &); wait")
        bench.launch("sleep", "1000", job_id=2)
        wait_until(lambda: bench.output().exists() and len(bench.output().read_text().split()) == 2)
        child, daemonized = map(int, bench.output().read_text().split())
        runner = bench.wait(AttemptStarted, 2).process.pid
        owners = bench.engine.owners([child, daemonized, runner, os.getpid(), 1, 2**22 + 1])
        assert owners == {child: ref(), daemonized: ref(), runner: ref(2)}


def test_many_at_once_end_once_each_and_leave_no_zombie(bench):
    for job_id in range(1, 21):
        bench.launch("true", job_id=job_id)
    for job_id in range(1, 21):
        bench.wait(AttemptExited, job_id)
    assert len(bench.reported) == 40
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    if children.exists():
        runners = {event.process.pid for event in bench.reported if isinstance(event, AttemptStarted)}
        assert not runners & {int(pid) for pid in children.read_text().split()}


def test_listener_that_fails_does_not_end_the_watch(bench):
    def fail(event):
        bench.engine._on_event = bench.report
        raise RuntimeError("a bug")

    bench.engine._on_event = fail
    bench.launch("true")
    assert bench.wait(AttemptExited).exit.exit_code == 0
