"""Places where a daemon of ours runs jobs: this machine, an allocation of Slurm, a task of Ray.

Each place is one file on the path of the tests, `place_case_NAME.py`, found by its name. It says why it cannot be
tested here (`missing()`, None if it can), and has a class `Case(root, first)`, which runs `first`, a shell command, as
its first job. It has

- `client`, of the daemon that runs the jobs; `root`, a folder that tests and jobs share; `env`, of further jobs;
- `crash()`, which kills the daemon with SIGKILL and starts again whatever starts it; `adopts`: whether its jobs go on
  under the next daemon, or else begin again;
- `lose_node()`, which ends everything at once on the node where `first` runs; `after_node_loss`: the state of `first`
  then;
- `ended()`, the state in which `first` ended, or None; and `close()`.
"""

from __future__ import annotations

import contextlib
import importlib
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
NAMES = sorted(path.stem.removeprefix("place_case_") for path in TESTS.glob("place_case_*.py"))
TIMEOUT_S = 200
GATE = "until [ -e {root}/open ]; do sleep 0.05; done"


@contextlib.contextmanager
def opened(name, first):
    module = importlib.import_module(f"place_case_{name}")
    reason = module.missing()
    if reason is not None:
        pytest.skip(reason)
    root = Path(tempfile.mkdtemp(prefix=f"ct-{name[:5]}-", dir="/tmp"))
    root.chmod(0o755)
    try:
        case = module.Case(root, first.format(root=root))
        try:
            yield case
        finally:
            case.close()
    finally:
        shutil.rmtree(root, ignore_errors=True)


def signaled_until_ended(client, job_id):
    """Send SIGUSR1 to a job until it ends: nothing is sent to a host that does not answer for some seconds."""

    def has_ended():
        client.signal(signal.SIGUSR1, [str(job_id)], target="all")
        return client.wait(job_id, timeout_s=1.0)["ended_at"] is not None

    until(has_ended, "the job ends")


def until(holds, what):
    """Wait until `holds()`, for what only files show."""
    give_up_s = time.monotonic() + TIMEOUT_S
    while not (found := holds()):
        assert time.monotonic() < give_up_s, what
        time.sleep(0.05)
    return found
