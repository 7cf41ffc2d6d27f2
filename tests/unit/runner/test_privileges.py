"""Who a job is: its user, limits and mask, and what its runner reads of its files. Most need root."""

from __future__ import annotations

import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import cotenant
from cotenant.runner import privileges

RUNNER = Path(cotenant.__file__).parent / "runner"
TIMEOUT_S = 60
NOBODY_UID = 65534
OOM = "printf 'Traceback (most recent call last):\\n  x\\ntorch.OutOfMemoryError: CUDA out of memory.\\n'"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture
def tmp_path():
    """A folder that everybody may enter: those of pytest are closed again by every other run of it."""
    folder = Path(tempfile.mkdtemp(prefix="cotenant-rights-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def home(tmp_path):
    """A folder of the user's."""
    folder = tmp_path / "home"
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, NOBODY_UID, NOBODY_UID)
    return folder


@pytest.fixture
def attempt(tmp_path, home):
    """Writes a spec and gives the command line of its runner."""

    def attempt(script, **spec):
        folder = tmp_path / "attempt"
        folder.mkdir(mode=0o700)
        fields = {"argv": ["sh", "-c", script], "cwd": str(home), "env": {"PATH": os.environ["PATH"]}, "grace_s": 1.0}
        fields |= {"stdout": str(folder / "stdout.log"), "stderr": str(folder / "stderr.log"), **spec}
        (folder / "spec.json").write_text(json.dumps(fields))
        return [sys.executable, "-I", "-S", str(RUNNER), str(folder)]

    return attempt


def ran(command, tmp_path):
    """The result and the log of an attempt that is over."""
    subprocess.run(command, check=False, timeout=TIMEOUT_S)
    log = tmp_path / "attempt/stdout.log"
    return json.loads((tmp_path / "attempt/result.json").read_text()), log.read_text() if log.exists() else ""


@pytest.mark.parametrize("uid", [None, pytest.param(NOBODY_UID, marks=as_root)])
def test_files_are_created_with_the_submitters_umask(attempt, tmp_path, home, uid):
    command = attempt("umask; touch made", uid=uid, umask=0o077, stderr=str(home / "errors"))
    assert ran(command, tmp_path)[1] == "0077\n"
    assert [(home / name).stat().st_mode & 0o777 for name in ("made", "errors")] == [0o600, 0o600]
    assert (tmp_path / "attempt/stdout.log").stat().st_mode & 0o777 == 0o600


def test_without_a_umask_the_runners_applies(attempt, tmp_path):
    assert (
        ran(attempt("umask"), tmp_path)[1]
        == subprocess.run(["sh", "-c", "umask"], capture_output=True, text=True, check=True).stdout
    )


@as_root
def test_a_job_has_the_limits_of_its_submitter(attempt, tmp_path):
    limits = {"nofile": [100, 200], "core": [0, 0], "strange": [1, 1]}
    command = attempt("ulimit -Sn; ulimit -Hn; ulimit -c", uid=NOBODY_UID, limits=limits)
    assert ran(command, tmp_path)[1] == "100\n200\n0\n"


def test_a_limit_that_may_not_be_raised_becomes_the_nearest():
    script = (
        "import resource as r; from cotenant.runner import privileges\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (50, 60))\n"
        "privileges.set_limits({'nofile': [-1, -1], 'core': [0, 0]})\n"
        "print(r.getrlimit(r.RLIMIT_NOFILE), r.getrlimit(r.RLIMIT_CORE))"
    )
    other = {"user": NOBODY_UID, "group": NOBODY_UID} if os.geteuid() == 0 else {}
    done = subprocess.run(
        ["/usr/bin/python3", "-c", script],
        env={"PYTHONPATH": str(RUNNER.parent.parent)},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        **other,
    )
    if "No module named" in done.stderr:
        pytest.skip("our modules are in a folder that only root may enter")
    assert done.stdout == "(60, 60) (0, 0)\n", done.stderr


@pytest.mark.parametrize(
    ("one", "other", "lower"),
    [(1, 2, 1), (-1, 2, 2), (3, -1, 3), (-1, -1, -1)],
)
def test_the_stricter_of_two_limits(one, other, lower):
    assert resource.RLIM_INFINITY == -1
    assert privileges._stricter_limit(one, other) == lower


@pytest.mark.parametrize("uid", [None, pytest.param(NOBODY_UID, marks=as_root)])
def test_a_named_pipe_without_a_reader_does_not_block_the_runner(attempt, tmp_path, home, uid):
    os.mkfifo(home / "pipe", 0o666)
    (home / "pipe").chmod(0o666)
    exit_, _ = ran(attempt("echo hi", uid=uid, stdout=str(home / "pipe")), tmp_path)
    assert (exit_["reason"], exit_["detail"]) == (
        "not-started",
        f"cannot open `{home}/pipe` for its output: it is a pipe without a reader",
    )


@pytest.mark.parametrize("uid", [None, pytest.param(NOBODY_UID, marks=as_root)])
def test_a_named_pipe_with_a_reader_gets_all_output(attempt, tmp_path, home, uid):
    os.mkfifo(home / "pipe", 0o666)
    (home / "pipe").chmod(0o666)
    reader = os.open(home / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    runner = subprocess.Popen(attempt("head -c 200000 /dev/zero", uid=uid, stdout=str(home / "pipe")))
    data = b""
    while len(data) < 200_000:  # more than a pipe holds: writing has to wait, not to fail
        assert select.select([reader], [], [], TIMEOUT_S)[0]
        piece = os.read(reader, 65536)
        assert piece, f"the writer gave up after {len(data)} bytes"
        data += piece
    os.close(reader)
    assert runner.wait(TIMEOUT_S) == 0


@as_root
def test_a_log_that_the_user_may_not_read_is_no_evidence(attempt, tmp_path, home):
    """A link in the place of the output, to a file of another's that ends in an error."""
    secret = tmp_path / "secret"
    subprocess.run(["sh", "-c", f"{OOM} > {secret}; chmod 600 {secret}"], check=True)
    script = f"echo mine; rm out; ln -s {secret} out; exit 1"
    exit_, _ = ran(attempt(script, uid=NOBODY_UID, stdout=str(home / "out"), stderr=str(home / "out")), tmp_path)
    assert (exit_["exit_code"], exit_["oom"]) == (1, {})


@as_root
def test_a_log_that_the_user_may_read_is_evidence(attempt, tmp_path, home):
    exit_, _ = ran(
        attempt(f"{OOM}; exit 1", uid=NOBODY_UID, stdout=str(home / "out"), stderr=str(home / "out")), tmp_path
    )
    assert exit_["oom"]["exception"] is True


@as_root
@pytest.mark.parametrize(
    ("uid", "user", "why"),
    [
        pytest.param(2**31 - 7, "ann", "no user of this machine has the id 2147483641", id="was removed"),
        pytest.param(
            NOBODY_UID, "ann", "the id 65534 was that of user `ann` and is `nobody`'s now", id="has another owner"
        ),
    ],
)
def test_a_job_of_a_deleted_user_does_not_run_as_another(attempt, tmp_path, uid, user, why):
    exit_, log = ran(attempt("echo ran", uid=uid, user=user), tmp_path)
    assert (exit_["reason"], exit_["detail"], log) == ("not-started", why, "")


@as_root
def test_acting_as_another_user_ends_with_the_block():
    before = os.geteuid(), os.getegid(), os.getgroups()
    with privileges.acting_as(NOBODY_UID):
        assert (os.geteuid(), os.getuid()) == (NOBODY_UID, 0)
        with pytest.raises(PermissionError):
            Path("/etc/shadow").read_bytes()
    assert (os.geteuid(), os.getegid(), os.getgroups()) == before
    with pytest.raises(PermissionError, match="no user has the id"), privileges.acting_as(2**31 - 7):
        pass


@as_root
def test_a_child_blocked_in_a_users_file_ends_with_the_runner(attempt, tmp_path, home):
    """Where opening the output, or looking for the program, takes for ever; here it sleeps."""
    channel, runners_end = os.pipe()
    script = tmp_path / "stopping.py"
    script.write_text(
        "import os, pathlib, sys, time\n"
        f"sys.path[:0] = {[str(RUNNER.parent.parent)]!r}\n"
        "from cotenant.runner import attempt, child\n"
        f"held = pathlib.Path({str(home / 'held')!r})\n"
        "child._enter = lambda _: (held.write_text(str(os.listdir('/proc/self/fd')) + '.'), time.sleep(1000))\n"
        f"sys.exit(attempt.main([{str(tmp_path / 'attempt')!r}, '{runners_end}']))\n"
    )
    attempt("touch ran", uid=NOBODY_UID)
    runner = subprocess.Popen([sys.executable, "-I", "-S", str(script)], pass_fds=(runners_end,))
    os.close(runners_end)
    give_up_s = time.monotonic() + TIMEOUT_S
    held = home / "held"
    while not held.exists() or not held.read_text().endswith("."):
        assert time.monotonic() < give_up_s
        time.sleep(0.01)
    child = Path(f"/proc/{runner.pid}/task/{runner.pid}/children").read_text().strip()
    runner.send_signal(signal.SIGKILL)
    assert runner.wait(TIMEOUT_S) == -9
    assert repr(str(runners_end)) not in held.read_text(), "the child kept the channel open"
    assert os.read(channel, 100) == b""
    os.close(channel)
    while _stat(child) and ") Z " not in _stat(child):
        assert time.monotonic() < give_up_s, "the child outlives its runner"
        time.sleep(0.01)
    assert not (home / "ran").exists()


def _stat(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
