"""The runner by itself, as an engine or a person would start it."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import cotenant
from cotenant.runner import child, files, procfs
from running import is_running

RUNNER = Path(cotenant.__file__).parent / "runner"
TIMEOUT_S = 60
OOM = "printf 'Traceback (most recent call last):\\n  x\\ntorch.OutOfMemoryError: CUDA out of memory.\\n' >&2; exit 1"


@pytest.fixture
def attempt(tmp_path):
    """Writes a spec and gives the command line of its runner."""

    def attempt(*argv, **spec):
        folder = tmp_path / "attempt"
        folder.mkdir()
        fields = {"argv": list(argv), "cwd": "/", "env": {"PATH": os.environ["PATH"]}, "grace_s": 1.0}
        fields |= {"stdout": str(folder / "stdout.log"), "stderr": str(folder / "stderr.log"), **spec}
        (folder / "spec.json").write_text(json.dumps(fields))
        return [sys.executable, "-I", "-S", str(RUNNER), str(folder)]

    return attempt


def result(tmp_path):
    return json.loads((tmp_path / "attempt/result.json").read_text())


def wait_until(holds):
    give_up_s = time.monotonic() + TIMEOUT_S
    while not (found := holds()):
        assert time.monotonic() < give_up_s
        time.sleep(0.01)
    return found


@pytest.mark.parametrize(
    ("script", "spec", "code"),
    [
        pytest.param("exit 0", {}, 0, id="success"),
        pytest.param("exit 9", {}, 9, id="failure"),
        pytest.param("kill -KILL $$", {}, 137, id="signal"),
        pytest.param("sleep 1000", {"time_limit_s": 0.05}, 124, id="time limit"),
        pytest.param("exit 0", {"time_limit_s": 1e13}, 0, id="time limit beyond what the system can wait for"),
        pytest.param("true", {"cwd": "/no/such"}, 127, id="not started"),
        pytest.param(OOM, {}, 77, id="out of memory"),
    ],
)
def test_the_runners_exit_code_says_how_the_job_ended(attempt, script, spec, code):
    assert subprocess.run(attempt("sh", "-c", script, **spec), check=False, timeout=TIMEOUT_S).returncode == code


def test_a_survived_oom_is_no_proof(attempt, tmp_path):
    subprocess.run(attempt("sh", "-c", OOM.replace("exit 1", "exit 0")), check=True, timeout=TIMEOUT_S)
    assert result(tmp_path)["oom"] == {"message": True}


def test_a_number_of_400_digits_in_the_output_costs_no_result(attempt, tmp_path):
    script = OOM.replace("out of memory.", f"out of memory. Tried to allocate {'9' * 400}.00 GiB")
    assert subprocess.run(attempt("sh", "-c", script), check=False, timeout=TIMEOUT_S).returncode == 77
    assert result(tmp_path)["oom"] == {"exception": True, "tried_bytes": None, "in_use_bytes": None}


def test_evidence_that_fails_costs_no_result(attempt, tmp_path):
    """With a broken reader of evidence in place of ours: whatever a job writes, its exit is recorded."""
    folder = attempt("sh", "-c", "exit 9")[-1]
    program = (
        "import sys; from cotenant.runner import attempt, oom_evidence\n"
        "def evidence(outputs, *, failed): raise RecursionError\n"
        "oom_evidence.evidence = evidence\n"
        "sys.exit(attempt.main(sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", program, folder], check=False, timeout=TIMEOUT_S)
    assert (done.returncode, result(tmp_path)["exit_code"], result(tmp_path)["oom"]) == (9, 9, {})
    assert result(tmp_path)["detail"] == "its output could not be examined: RecursionError"


@pytest.mark.parametrize("spec", [{"stdout": "/tmp/\ud800"}, {"cwd": "/\0"}], ids=["lone surrogate", "NUL"])
def test_a_name_that_no_file_can_have_is_a_result(attempt, tmp_path, spec):
    assert subprocess.run(attempt("true", **spec), check=False, timeout=TIMEOUT_S).returncode == 127
    assert result(tmp_path)["reason"] == "not-started"


@pytest.mark.parametrize(("number", "reason"), [(errno.ENOSPC, "never-ran"), (errno.EIO, "not-started")])
def test_a_job_without_room_for_its_start_never_ran(attempt, tmp_path, number, reason):
    folder = attempt("touch", str(tmp_path / "ran"))[-1]
    program = (
        "import sys; from cotenant.runner import attempt, files\n"
        "really = files.write_json\n"
        "def write(path, *args, **options):\n"
        f"    if path.endswith('started.json'): raise OSError({number}, 'no room')\n"
        "    really(path, *args, **options)\n"
        "files.write_json = write\n"
        "sys.exit(attempt.main(sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", program, folder], check=False, timeout=TIMEOUT_S)
    assert (done.returncode, result(tmp_path)["reason"]) == (127, reason)
    assert not (tmp_path / "ran").exists()


def test_output_beyond_its_limit_is_rotated_and_the_evidence_is_still_found(attempt, tmp_path):
    log = tmp_path / "attempt/stdout.log"
    script = f"head -c 3000000 /dev/zero; while [ $(stat -c %s {log}) -gt 500000 ]; do sleep 0.05; done; {OOM}"
    command = attempt("sh", "-c", script, max_output_bytes=1_000_000)
    assert subprocess.run(command, check=False, timeout=TIMEOUT_S).returncode == 77
    assert (log.stat().st_size, log.with_name("stdout.log.1").stat().st_size) == (0, 500_000)


def test_a_second_runner_of_an_attempt_starts_nothing(attempt, tmp_path):
    command = attempt("sh", "-c", f"echo run >>{tmp_path}/runs")
    for _ in range(2):
        assert subprocess.run(command, check=False, timeout=TIMEOUT_S).returncode == 0
    assert (tmp_path / "runs").read_text() == "run\n"


def test_two_runners_at_once_start_one_job(attempt, tmp_path):
    command = attempt("sh", "-c", f"echo run >>{tmp_path}/runs")
    runners = [subprocess.Popen(command) for _ in range(8)]
    assert [runner.wait(TIMEOUT_S) for runner in runners] == [0] * 8
    assert (tmp_path / "runs").read_text() == "run\n"


def test_a_folder_without_a_spec_is_an_error(tmp_path):
    done = subprocess.run([sys.executable, "-I", "-S", str(RUNNER), str(tmp_path)], capture_output=True, check=False)
    assert done.returncode == 127
    assert b"no spec in" in done.stderr


def test_sigterm_alone_stops_with_the_grace_of_the_spec(attempt, tmp_path):
    command = attempt("sh", "-c", "trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done", grace_s=TIMEOUT_S)
    runner = subprocess.Popen(command)
    wait_until(lambda: (tmp_path / "attempt/stdout.log").exists() and (tmp_path / "attempt/stdout.log").read_text())
    runner.send_signal(signal.SIGTERM)
    assert runner.wait(TIMEOUT_S) == 3
    assert (result(tmp_path)["reason"], result(tmp_path)["detail"]) == ("stopped", "SIGTERM to its runner")


KILL_JOB_AND_RUNNER = """
runner=$PPID; job=$$
(kill -STOP $runner; kill -{0} $job; kill -{1} $runner; kill -CONT $runner) &
sleep 1000
"""


@pytest.mark.parametrize("number", ["TERM", "KILL"])
def test_a_signal_to_the_job_and_to_its_runner_at_once_is_a_stop(attempt, tmp_path, number):
    command = attempt("sh", "-c", KILL_JOB_AND_RUNNER.format(number, "TERM"))
    subprocess.run(command, check=False, timeout=TIMEOUT_S)
    assert (result(tmp_path)["reason"], result(tmp_path)["detail"]) == ("stopped", "SIGTERM to its runner")


PATIENT = """
import sys
sys.path.insert(0, sys.argv[1])
from cotenant.runner import attempt
attempt.SIGNALLED_WITHIN_S = {seconds}
sys.exit(attempt.main(sys.argv[2:]))
"""


def run_patient(command, seconds):
    """Start a runner that waits so long for a signal of its own."""
    python, _, _, _, folder = command
    package = str(Path(cotenant.__file__).parent.parent)
    return subprocess.Popen([python, "-c", PATIENT.format(seconds=seconds), package, folder])


@pytest.mark.parametrize("script", ["kill -TERM $$", "kill -KILL $$", "exit 143", "exit 137"])
def test_a_runner_that_is_signalled_after_its_job_calls_it_a_stop(attempt, tmp_path, script):
    runner = run_patient(attempt("sh", "-c", f"echo $$ >{tmp_path}/pid; {script}"), 2 * TIMEOUT_S)
    job = int(wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
    wait_until(lambda: not is_running(job))
    assert not (tmp_path / "attempt/result.json").exists()
    runner.send_signal(signal.SIGTERM)
    runner.wait(TIMEOUT_S)
    assert (result(tmp_path)["reason"], result(tmp_path)["detail"]) == ("stopped", "SIGTERM to its runner")


def test_a_runner_that_is_killed_after_its_job_leaves_no_result(attempt, tmp_path):
    runner = run_patient(attempt("sh", "-c", f"echo $$ >{tmp_path}/pid; kill -KILL $$"), 2 * TIMEOUT_S)
    job = int(wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
    wait_until(lambda: not is_running(job))
    runner.kill()
    runner.wait(TIMEOUT_S)
    assert not (tmp_path / "attempt/result.json").exists()


@pytest.mark.parametrize("code", [0, 1])
def test_only_an_end_by_a_signal_is_waited_after(attempt, tmp_path, code):
    assert run_patient(attempt("sh", "-c", f"exit {code}"), 1e9).wait(TIMEOUT_S) == code
    assert result(tmp_path)["reason"] == "exited"


def test_a_job_that_is_signalled_alone_has_ended_by_itself(attempt, tmp_path):
    subprocess.run(attempt("sh", "-c", "kill -TERM $$"), check=False, timeout=TIMEOUT_S)
    assert (result(tmp_path)["reason"], result(tmp_path)["signal"], result(tmp_path)["detail"]) == ("exited", 15, "")


def test_a_stop_before_the_runner_starts_is_honored(attempt, tmp_path):
    command = attempt("touch", str(tmp_path / "ran"))
    (tmp_path / "attempt/stop.json").write_text(json.dumps({"reason": "cancelled", "grace_s": 1}))
    subprocess.run(command, check=False, timeout=TIMEOUT_S)
    assert (result(tmp_path)["reason"], result(tmp_path)["detail"]) == ("stopped", "cancelled")
    assert not (tmp_path / "ran").exists()


def test_start_is_on_disk_before_the_program_runs(attempt, tmp_path):
    subprocess.run(attempt("cat", str(tmp_path / "attempt/started.json")), check=True, timeout=TIMEOUT_S)
    output = json.loads((tmp_path / "attempt/stdout.log").read_text())
    assert output["runner"]["boot_id"] == procfs.boot_id()
    assert output["runner"]["pid"] == output["session"]


def test_the_pid_of_a_running_job_is_recorded(attempt, tmp_path):
    wait = "while ! grep -q pid .result.reserved; do sleep 0.01; done; cat .result.reserved; echo $$"
    subprocess.run(attempt("sh", "-c", wait, cwd=str(tmp_path / "attempt")), check=True, timeout=TIMEOUT_S)
    output, pid = (tmp_path / "attempt/stdout.log").read_text().rsplit(maxsplit=1)
    assert json.loads(output)["job"]["pid"] == int(pid)


WILD_CLOCK = """
import itertools, runpy, sys, time
real = time.time
wrong_by_s = itertools.cycle([0.0, {jump_s}, {jump_s}])
time.time = lambda: real() + next(wrong_by_s)
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("jump_s", [-86400.0, 86400.0])
@pytest.mark.parametrize(("script", "limit_s", "reason"), [("exit 3", 1000, "exited"), ("sleep 1000", 0.1, "timeout")])
def test_a_wall_clock_that_jumps_changes_no_limit_and_no_duration(attempt, tmp_path, script, limit_s, reason, jump_s):
    python, *flags, runner, folder = attempt("sh", "-c", script, time_limit_s=limit_s)
    code = WILD_CLOCK.format(jump_s=jump_s)
    subprocess.run([python, *flags, "-c", code, runner, folder], check=False, timeout=TIMEOUT_S)
    output = result(tmp_path)
    assert output["reason"] == reason
    assert 0 <= output["elapsed_s"] < TIMEOUT_S
    assert output["ended_at_s"] - output["started_at_s"] == pytest.approx(output["elapsed_s"], abs=1e-3)


def test_result_waits_for_a_disk_that_fails(attempt, tmp_path):
    """A folder in place of the result stands for any reason why it cannot be written."""
    command = attempt("sh", "-c", "echo ready; exit 4")
    (tmp_path / "attempt/result.json/in the way").mkdir(parents=True)
    runner = subprocess.Popen(command)
    drafts = set()

    def tried_twice():
        draft = tmp_path / "attempt/.result.reserved"
        if draft.exists() and draft.read_text().startswith("{"):
            drafts.add(draft.stat().st_mtime_ns)
        return len(drafts) >= 2

    wait_until(tried_twice)
    (tmp_path / "attempt/result.json/in the way").rmdir()
    (tmp_path / "attempt/result.json").rmdir()
    assert runner.wait(TIMEOUT_S) == 4
    assert result(tmp_path)["exit_code"] == 4


def test_the_result_has_cpu_time_and_memory(attempt, tmp_path):
    burn = "import time\nwhile time.process_time() < 0.1: pass"
    subprocess.run(attempt(sys.executable, "-c", burn), check=True, timeout=TIMEOUT_S)
    output = result(tmp_path)
    assert output["user_s"] + output["system_s"] >= 0.1
    assert output["max_rss_bytes"] > 2**20
    assert output["ended_at_s"] - output["started_at_s"] == pytest.approx(output["elapsed_s"], abs=1e-3)


@pytest.mark.parametrize(("daemon", "job"), [("-500", "0"), ("300", "300")])
def test_a_job_does_not_inherit_protection_from_the_oom_killer(attempt, tmp_path, daemon, job):
    command = attempt("cat", "/proc/self/oom_score_adj")
    shell = f'echo {daemon} > /proc/self/oom_score_adj && exec "$@"'
    done = subprocess.run(["sh", "-c", shell, "sh", *command], check=False, timeout=TIMEOUT_S, capture_output=True)
    if done.returncode != 0:
        pytest.skip(f"a process cannot be protected here: {done.stderr.decode().strip()}")
    assert (tmp_path / "attempt/stdout.log").read_text().strip() == job


@pytest.mark.parametrize(("before", "after"), [("-500\n", "0\n00\n"), ("0\n", "0\n"), ("300\n", "300\n")])
def test_only_a_negative_oom_score_is_reset(tmp_path, before, after):
    """In a file, what is written lies over what was there; the kernel takes the whole line."""
    path = tmp_path / "oom_score_adj"
    path.write_text(before)
    child._reset_oom_score(str(path))
    assert path.read_text() == after
    child._reset_oom_score(str(tmp_path / "none"))


def test_job_has_default_signals_and_its_own_group(attempt, tmp_path):
    subprocess.run(
        attempt("sh", "-c", "grep -E 'Sig(Blk|Ign)' /proc/self/status; ps -o pgid= -p $$; echo $$"),
        check=True,
        timeout=TIMEOUT_S,
    )
    blocked, ignored, group, pid = (tmp_path / "attempt/stdout.log").read_text().split("\n")[:4]
    assert int(blocked.split()[1], 16) == 0
    assert int(ignored.split()[1], 16) & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGHUP - 1) == 0
    assert group.strip() == pid


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a job as somebody else")
class TestAsAnotherUser:
    """Uid 65534 is `nobody` on Linux."""

    def test_the_job_runs_as_its_user(self, attempt, tmp_path):
        subprocess.run(attempt("id", "-u", uid=65534), check=True, timeout=TIMEOUT_S)
        assert (tmp_path / "attempt/stdout.log").read_text() == "65534\n"

    def test_groups_are_those_of_the_user(self, attempt, tmp_path):
        subprocess.run(attempt("id", "-G", uid=65534), check=True, timeout=TIMEOUT_S, extra_groups=[0, 54321])
        assert not {"0", "54321"} & set((tmp_path / "attempt/stdout.log").read_text().split())

    def test_user_logs_are_opened_as_the_user(self, attempt, tmp_path):
        (tmp_path / "theirs").write_text("root only\n")
        (tmp_path / "theirs").chmod(0o600)
        subprocess.run(attempt("true", uid=65534, stdout=str(tmp_path / "theirs")), check=False, timeout=TIMEOUT_S)
        assert result(tmp_path)["reason"] == "not-started"
        assert "permission denied" in result(tmp_path)["detail"]

    def test_an_unknown_user_is_an_error(self, attempt, tmp_path):
        subprocess.run(attempt("true", uid=3_999_999), check=False, timeout=TIMEOUT_S)
        assert "no user of this machine has the id 3999999" in result(tmp_path)["detail"]


def test_stat_of_a_process_with_a_strange_name(tmp_path):
    program = tmp_path / "a) S 1 (b"
    program.symlink_to(Path("/bin/sleep").resolve())
    process = subprocess.Popen([str(program), "1000"])
    try:
        wait_until(lambda: b"1000" in Path(f"/proc/{process.pid}/cmdline").read_bytes())
        assert procfs.stat(process.pid).ppid == os.getpid()
    finally:
        process.kill()
        process.wait()


def test_write_json_leaves_the_old_file_when_it_fails(tmp_path):
    files.write_json(tmp_path / "file", {"a": 1})
    with pytest.raises(TypeError):
        files.write_json(tmp_path / "file", {"a": object()})
    assert files.read_json(tmp_path / "file") == {"a": 1}


def test_reserved_file_takes_the_result(tmp_path):
    files.reserve(tmp_path / "reserved")
    assert (tmp_path / "reserved").stat().st_size == files.RESERVED_BYTES
    files.write_json(tmp_path / "file", {"a": 1}, via=tmp_path / "reserved")
    assert files.read_json(tmp_path / "file") == {"a": 1}
    assert not (tmp_path / "reserved").exists()
