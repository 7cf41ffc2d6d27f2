"""A program in the place of a process gets each of its signals once, whoever else they were sent to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import signal, time
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, lambda number, _: print(signal.Signals(number).name, flush=True))
print("ready", flush=True)
while True:
    time.sleep(1000)
"""
OUTER = """
import sys
from cotenant.osutil import forwarding
forwarding.WITNESS_WAIT_S, forwarding.RECENT_S = map(float, sys.argv[1:3])
sys.exit(forwarding.popen_with_signals([sys.executable, "-c", sys.argv[3]]).wait())
"""


@pytest.fixture
def start():
    """Starts the outer process, which leads a group of processes, until its program is ready."""
    started = []

    def start(wait_s, recent_s):
        process = subprocess.Popen(
            [sys.executable, "-c", OUTER, str(wait_s), str(recent_s), PROGRAM],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_signal_to_all_processes_reaches_the_program_once(start):
    """`scancel` did so twice, and the second SIGTERM interrupted the handler of the first."""
    process = start(1000, 1000)
    process.send_signal(signal.SIGSTOP)  # so that it goes on when the program has its own
    os.killpg(process.pid, signal.SIGUSR1)
    assert process.stdout.readline() == "SIGUSR1\n"
    process.send_signal(signal.SIGCONT)
    os.killpg(process.pid, signal.SIGUSR2)
    assert process.stdout.readline() == "SIGUSR2\n"
    os.killpg(process.pid, signal.SIGTERM)
    assert process.stdout.readline() == "SIGTERM\n"


def test_a_signal_to_one_process_goes_on(start):
    process = start(0, 1000)
    for name in ("SIGUSR1", "SIGUSR1", "SIGTERM"):
        process.send_signal(signal.Signals[name])
        assert process.stdout.readline() == f"{name}\n"


ONCE = """
import os, signal
from cotenant.osutil import forwarding
signal.signal(signal.SIGUSR1, lambda *_: None)
witness = forwarding.Witness()
os.kill(witness.pid, signal.SIGUSR1)
forwarding.RECENT_S = forwarding.WITNESS_WAIT_S = 1000
first = witness.has_seen(signal.SIGUSR1)
forwarding.WITNESS_WAIT_S = 0
print(first, witness.has_seen(signal.SIGUSR1))
forwarding.WITNESS_WAIT_S = 1000
for number in (signal.SIGUSR1, signal.SIGUSR2):
    os.kill(witness.pid, number)
witness.has_seen(signal.SIGUSR2)
forwarding.RECENT_S, forwarding.WITNESS_WAIT_S = -1, 0
print(witness.has_seen(signal.SIGUSR1))
"""


def test_the_witness_saw_each_signal_once_and_not_long_ago():
    done = subprocess.run([sys.executable, "-c", ONCE], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "True False\nFalse\n"


def test_nothing_is_left_when_the_process_is_killed(start):
    process = start(0, 1)
    commands = {pid: _command(pid) for pid in _children(process.pid)}
    (witness,) = (pid for pid, command in commands.items() if OUTER in command)
    assert len(commands) == 2
    process.kill()
    process.wait()
    while _command(witness):
        pass


def _children(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
