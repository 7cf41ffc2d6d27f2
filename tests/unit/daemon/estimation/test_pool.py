"""Estimates in processes of their own; the estimator is a small program at the edge."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading

import pytest

from builders import a_spec, an_estimate
from cotenant.core.codec import encode
from cotenant.core.estimate import MemoryProfile
from cotenant.daemon.config.schema import EstimatesSection
from cotenant.daemon.estimation.pool import EstimatePool, default_concurrency
from cotenant.daemon.estimation.worker import TAG, WATCHDOG
from cotenant.osutil import cgroups
from estimator_programs import ECHO

TIMEOUT_S = 60
NO_USER = 4_000_000_000
HANGS = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'w'), flush=True); time.sleep(1000)"


def spec_of(**changes):
    """A job of whoever runs the tests: an estimate runs as the job's user."""
    return a_spec(**{"uid": os.geteuid(), **changes})


@contextlib.contextmanager
def a_pool(tmp_path, code, *argv, **settings):
    answers = queue.SimpleQueue()
    pool = EstimatePool(
        EstimatesSection(**settings),
        gpu="A100-40GB",
        folder=tmp_path / "estimates",
        now=lambda: 5.0,
        emit=answers.put,
        command=(sys.executable, "-c", code, *argv),
    )
    pool.start()
    try:
        yield pool, answers
    finally:
        pool.close()


def answering(value):
    return f"import sys; sys.stdin.readline(); print({json.dumps(json.dumps(value))})"


def test_an_answer_becomes_an_event(tmp_path):
    estimate = an_estimate(3, estimator="traced")
    with a_pool(tmp_path, answering({"estimate": encode(estimate)})) as (pool, answers):
        pool.request(7, spec_of())
        event = answers.get(timeout=TIMEOUT_S)
    assert (event.job_id, event.at_s, event.estimate, event.error) == (7, 5.0, estimate, None)


def test_the_memory_of_the_traced_steps_is_saved_and_replaced(tmp_path):
    profile = MemoryProfile(category_bytes={"parameter": (1, 2)}, phases=((0, "load"),))
    answer = {"estimate": encode(an_estimate(3)), "profile": encode(profile)}
    with a_pool(tmp_path, answering(answer)) as (pool, answers):
        pool.request(7, spec_of())
        answers.get(timeout=TIMEOUT_S)
        assert pool.profile(7) == profile
        assert pool.profile(8) is None
        (tmp_path / "estimates" / "7.profile.json").write_text('{"type": "Memo')
        assert pool.profile(7) is None
    with a_pool(tmp_path, answering({"error": {"message": "no"}})) as (pool, answers):
        pool.request(7, spec_of())
        answers.get(timeout=TIMEOUT_S)
        assert [path.name for path in (tmp_path / "estimates").iterdir()] == ["7.log"]


def test_a_request_contains_the_job_and_the_estimator(tmp_path):
    code = 'import sys; open(sys.argv[1], \'w\').write(sys.stdin.readline()); print(\'{"error": {"message": "no"}}\')'
    with a_pool(tmp_path, code, str(tmp_path / "asked"), timeout_s=59.0) as (pool, answers):
        pool.request(1, spec_of(command=("python", "t.py"), env={"A": "1"}))
        assert answers.get(timeout=TIMEOUT_S).error == "no"
    request = json.loads((tmp_path / "asked").read_text())
    assert (request["estimator"], request["command"], request["gpu"]) == ("traced", ["python", "t.py"], "A100-40GB")
    assert request["env"].pop(TAG).startswith(f"{tmp_path}/estimates#")
    assert (request["env"], request["timeout_s"], request["workdir"]) == ({"A": "1"}, 59.0, "/tmp")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        pytest.param(answering({"error": {"message": "no step seen"}}), "no step seen", id="an error"),
        pytest.param("import sys; sys.exit('it broke')", "ended with exit code 1: it broke", id="a failure"),
        pytest.param("print('hello')", "answer is refused", id="no JSON"),
        pytest.param("print('{}')", "answer is refused", id="neither"),
        pytest.param("print('[]')", "answer is refused", id="an array"),
        pytest.param("print('x' * 2**21)", "it is longer than 1048576 bytes", id="a line of 2 MiB"),
        pytest.param("print('{}\\n{}')", "it has more than one line", id="two lines"),
        pytest.param(
            "import os\nwhile True: os.write(2, b'x' * 65536)",
            "more than 16777216 bytes to stderr",
            id="endless stderr",
        ),
        pytest.param(answering({"estimate": {"type": "Estimate", "version": 1}}), "answer is refused", id="half"),
        pytest.param("import os; os.kill(os.getpid(), 9)", "ended with exit code 137", id="killed"),
    ],
)
def test_a_failed_estimator_process_is_a_readable_error(tmp_path, code, error):
    with a_pool(tmp_path, code) as (pool, answers):
        pool.request(1, spec_of())
        event = answers.get(timeout=TIMEOUT_S)
    assert event.estimate is None
    assert error in event.error


def test_stderr_of_an_estimator_goes_to_its_log(tmp_path):
    with a_pool(tmp_path, "import sys; print('a warning', file=sys.stderr); print('{}')") as (pool, answers):
        pool.request(4, spec_of())
        answers.get(timeout=TIMEOUT_S)
        assert pool.log_path(4).read_text() == "a warning\n"


def test_declared_memory_needs_no_process(tmp_path):
    with a_pool(tmp_path, "raise SystemExit('never run')") as (pool, answers):
        pool.request(1, spec_of(declared_bytes=2**30))
        estimate = answers.get(timeout=TIMEOUT_S).estimate
        assert (estimate.estimator, estimate.bound_bytes) == ("declared", 2**30)
        pool.request(2, spec_of(declared_bytes=2**30, estimator="traced"))
        assert "never run" in answers.get(timeout=TIMEOUT_S).error
        pool.request(3, spec_of(estimator="declared"))
        assert answers.get(timeout=TIMEOUT_S).error == "no memory was declared"


def pid_in(path):
    """The pid that a program writes to a fifo."""
    return int(path.read_text())


def ends(pid):
    """Wait for the end of a process; True unless it takes too long."""
    try:
        with os.fdopen(os.pidfd_open(pid), "rb") as process:
            return bool(select.select([process], [], [], TIMEOUT_S)[0])
    except ProcessLookupError:
        return True


def test_a_cancelled_estimate_is_killed_and_not_reported(tmp_path):
    os.mkfifo(tmp_path / "pid")
    with a_pool(tmp_path, HANGS, str(tmp_path / "pid")) as (pool, answers):
        pool.request(1, spec_of())
        pid = pid_in(tmp_path / "pid")
        pool.cancel(1)
        assert ends(pid)
        pool.request(2, spec_of(declared_bytes=5))
        assert answers.get(timeout=TIMEOUT_S).job_id == 2
    assert answers.empty()


def test_close_ends_running_estimators(tmp_path):
    os.mkfifo(tmp_path / "pid")
    with a_pool(tmp_path, HANGS, str(tmp_path / "pid"), concurrency=1) as (pool, answers):
        pool.request(1, spec_of())
        pool.request(2, spec_of())
        pid = pid_in(tmp_path / "pid")
    assert ends(pid)
    assert answers.empty()


def test_an_estimator_that_exceeds_its_time_limit_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("cotenant.daemon.estimation.pool.STARTUP_S", 0.0)
    with a_pool(tmp_path, "import time; time.sleep(1000)", timeout_s=0.3) as (pool, answers):
        pool.request(1, spec_of())
        assert answers.get(timeout=TIMEOUT_S).error == "the estimator did not answer within 0.3 s"


def test_concurrency_is_bounded(tmp_path):
    """Two at once: both reach the barrier; the third starts when one of them is through."""
    for name in ("in", "out"):
        os.mkfifo(tmp_path / name)
    code = "import sys; open(sys.argv[1], 'w').write('x'); open(sys.argv[2]).read(); print('{}')"
    with a_pool(tmp_path, code, str(tmp_path / "in"), str(tmp_path / "out"), concurrency=2) as (pool, answers):
        for job_id in (1, 2, 3):
            pool.request(job_id, spec_of())
        arrived = os.open(tmp_path / "in", os.O_RDWR)
        read = b""
        while len(read) < 2:
            read += os.read(arrived, 8)
        assert len(pool._running) == 2
        stop = threading.Event()
        opener = threading.Thread(target=open_until, args=(tmp_path / "out", stop))
        opener.start()
        done = {answers.get(timeout=TIMEOUT_S).job_id for _ in range(3)}
        stop.set()
        opener.join()
        os.close(arrived)
    assert done == {1, 2, 3}


def open_until(path, stop):
    """Let every reader of a fifo through, until told to stop."""
    while not stop.is_set():
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))


def test_leash_ends_a_tree_when_its_owner_is_killed(tmp_path):
    """The owner dies without a word; a grandchild that left its session and its parent dies too."""
    os.mkfifo(tmp_path / "pid")
    script = f"echo $$ > {tmp_path}/pid; exec sleep 1000"
    escapee = f"import os\nif os.fork() == 0:\n  os.setsid()\n  os.execl('/bin/sh', 'sh', '-c', {script!r})"
    owner_code = (
        "import os, subprocess, sys\n"
        "read_end, write_end = os.pipe()\n"
        "argv = [sys.executable, '-I', '-S', sys.argv[1], str(read_end), '{}', sys.executable, '-c', sys.argv[2]]\n"
        "subprocess.Popen(argv, pass_fds=(read_end,)).wait()\n"
    )
    code = escapee + "\nimport time; time.sleep(1000)"
    owner = subprocess.Popen([sys.executable, "-c", owner_code, str(WATCHDOG), code])
    pid = pid_in(tmp_path / "pid")
    owner.kill()
    owner.wait()
    assert ends(pid)


def answer_of(pool, answers, job_id):
    pool.request(job_id, spec_of())
    return answers.get(timeout=TIMEOUT_S).error


def test_an_estimator_stays_for_the_next_request(tmp_path):
    with a_pool(tmp_path, ECHO) as (pool, answers):
        first = answer_of(pool, answers, 1)
        assert answer_of(pool, answers, 2) == first
    assert ends(int(first))


def test_an_idle_estimator_ends(tmp_path):
    with a_pool(tmp_path, ECHO, idle_timeout_s=0.01) as (pool, answers):
        first = answer_of(pool, answers, 1)
        assert ends(int(first))
        assert answer_of(pool, answers, 2) != first


def test_an_estimator_that_died_meanwhile_is_started_again(tmp_path):
    with a_pool(tmp_path, ECHO) as (pool, answers):
        first = int(answer_of(pool, answers, 1))
        os.kill(first, signal.SIGKILL)
        second = answer_of(pool, answers, 2)
        assert second.isdecimal()
        assert int(second) != first


def test_a_cancelled_estimate_leaves_the_next_one_alone(tmp_path):
    os.mkfifo(tmp_path / "pid")
    code = (
        "import os, sys, time\n"
        "for line in sys.stdin:\n"
        "    if 'hang' in line:\n"
        "        print(os.getpid(), file=open(sys.argv[1], 'w'), flush=True)\n"
        "        time.sleep(1000)\n"
        '    print(\'{"error": {"message": "through"}}\', flush=True)\n'
    )
    with a_pool(tmp_path, code, str(tmp_path / "pid")) as (pool, answers):
        pool.request(1, spec_of(command=("hang",)))
        pool.request(2, spec_of())
        pid_in(tmp_path / "pid")
        pool.cancel(1)
        event = answers.get(timeout=TIMEOUT_S)
    assert (event.job_id, event.error) == (2, "through")


def test_the_log_of_a_request_is_its_own(tmp_path):
    code = (
        "import sys\n"
        "for n, line in enumerate(sys.stdin):\n"
        "    print('warning', n, file=sys.stderr, flush=True)\n"
        '    print(\'{"error": {"message": "no"}}\', flush=True)\n'
    )
    with a_pool(tmp_path, code) as (pool, answers):
        for job_id in (1, 2):
            answer_of(pool, answers, job_id)
        assert pool.log_path(1).read_text() == "warning 0\n"
        assert pool.log_path(2).read_text() == "warning 1\n"


ESCAPES = (
    "import os, signal, sys, time\n"
    "read_end, write_end = os.pipe()\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        print(os.getpid(), file=open(sys.argv[1], 'w'), flush=True)\n"
    "        os.write(write_end, b'x')\n"
    "        time.sleep(1000)\n"
    "    os._exit(0)\n"
    "os.read(read_end, 1)\n"
    "os.kill(os.getppid(), signal.SIGKILL)\n"
    "time.sleep(1000)\n"
)
"""Starts a process in a session of its own, and kills the watchdog."""


@pytest.mark.parametrize("has_cgroup", [True, False], ids=["with a cgroup", "without"])
def test_what_kills_its_watchdog_does_not_live_on(tmp_path, monkeypatch, has_cgroup):
    if not has_cgroup:
        monkeypatch.setattr("cotenant.osutil.cgroups.own_folder", lambda: None)
    os.mkfifo(tmp_path / "pid")
    with a_pool(tmp_path, ESCAPES, str(tmp_path / "pid")) as (pool, answers):
        pool.request(1, spec_of())
        pid = pid_in(tmp_path / "pid")
        assert "ended with exit code 137" in answers.get(timeout=TIMEOUT_S).error
        assert ends(pid)


def test_an_estimator_has_the_limits_of_its_submitter(tmp_path):
    code = (
        "import json, resource, sys\n"
        "for line in sys.stdin:\n"
        "    limits = resource.getrlimit(resource.RLIMIT_NOFILE) + resource.getrlimit(resource.RLIMIT_CORE)\n"
        "    print(json.dumps({'error': {'message': str(limits)}}), flush=True)\n"
    )
    with a_pool(tmp_path, code, concurrency=1) as (pool, answers):
        for job_id, files in ((1, 400), (2, 300)):
            pool.request(job_id, spec_of(limits={"nofile": (files, 500), "core": (0, 0), "unknown": (1, 1)}))
            assert answers.get(timeout=TIMEOUT_S).error == f"({files}, 500, 0, 0)"


def test_the_jobs_of_one_user_do_not_delay_another(tmp_path):
    """Two workers, three jobs of one user that hang: the other's estimate is made at once."""
    os.mkfifo(tmp_path / "pid")
    answers = queue.SimpleQueue()
    pool = EstimatePool(
        EstimatesSection(concurrency=2),
        gpu="A100-40GB",
        folder=tmp_path / "estimates",
        now=lambda: 5.0,
        emit=answers.put,
        many_users=True,
        command=(sys.executable, "-c", HANGS, str(tmp_path / "pid")),
    )
    for job_id in (1, 2, 3):
        pool.request(job_id, spec_of())
    pool.start()
    try:
        pid_in(tmp_path / "pid")
        pool.request(4, spec_of(uid=NO_USER))
        event = answers.get(timeout=TIMEOUT_S)
    finally:
        pool.close()
    assert (event.job_id, f"no user with uid {NO_USER}" in event.error) == (4, True)


@pytest.mark.parametrize(("cores", "estimates"), [(1, 2), (8, 2), (32, 4), (256, 8)])
def test_estimates_at_once_by_default(cores, estimates):
    assert default_concurrency(cores) == estimates


@pytest.mark.parametrize(("program", "is_fatal"), [("python", True), ("./train.py", False)])
def test_a_failed_import_is_fatal_where_the_job_has_the_same_python(tmp_path, program, is_fatal):
    with a_pool(tmp_path, answering({"error": {"kind": "import", "message": "no module"}})) as (pool, answers):
        pool.request(1, spec_of(command=(program, "train.py")))
        event = answers.get(timeout=TIMEOUT_S)
    assert (event.error, event.is_fatal) == ("no module", is_fatal)


def test_the_cgroup_ends_with_the_process_even_without_the_daemon(tmp_path):
    folder = cgroups.create(f"cotenant-test-{os.getpid()}")
    if folder is None:
        pytest.skip("this process may not make a cgroup, or the kernel has no cgroup.kill")
    lifeline, life = os.pipe()
    command = ["sh", "-c", "grep ^0:: /proc/self/cgroup; exec sleep 1000"]
    argv = [sys.executable, "-I", "-S", str(WATCHDOG), str(lifeline), json.dumps({"cgroup": str(folder)}), *command]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, pass_fds=(lifeline,), text=True) as process:
        assert process.stdout.readline().rstrip().endswith(f"/{folder.name}")
        os.close(life)
        assert process.wait(TIMEOUT_S) == 128 + signal.SIGKILL
    os.close(lifeline)
    assert not folder.exists()


def test_a_dry_run_is_answered_when_the_pool_ends(tmp_path):
    """Its thread waited for ever, and the daemon never ended."""
    started, found = tmp_path / "started", queue.SimpleQueue()
    with a_pool(tmp_path, HANGS, str(started), concurrency=1) as (pool, _):
        callers = [
            threading.Thread(target=lambda: found.put(pool.estimate_spec(spec_of())), daemon=True) for _ in range(2)
        ]
        for caller in callers:  # the second waits for the only worker
            caller.start()
        while not (started.exists() and len(pool._trials) == 2):
            os.sched_yield()
    assert [found.get(timeout=TIMEOUT_S) for _ in callers] == [(None, "the daemon ends")] * 2
    for caller in callers:
        caller.join(TIMEOUT_S)
        assert not caller.is_alive()
    assert pool.estimate_spec(spec_of()) == (None, "the daemon ends")
