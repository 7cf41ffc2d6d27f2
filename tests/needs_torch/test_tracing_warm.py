"""The fork server, which has torch loaded: forked traces equal those of new processes and leave nothing behind."""

from __future__ import annotations

import os
import sys
import time

import pytest

from cotenant.core.errors import TraceError
from cotenant.tracing.process.forkserver_client import ForkServerClient
from cotenant.tracing.process.program import Program
from cotenant.tracing.process.trace_script import trace_script
from running import is_running
from traced_scripts import A100

pytest.importorskip("torch", reason="tracing needs torch")

PATIENCE_S = 200

TRAIN = """
import os, sys, torch
torch.manual_seed(0)
width = int(os.environ.get("WIDTH", "8"))
model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(10):
    model(torch.randn(int(sys.argv[1]), width).cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def warm():
    with ForkServerClient() as made:
        yield made


def run(folder, source, *args, warm=None, timeout_s=PATIENCE_S, env=None):
    (folder / "train.py").write_text(source)
    program = Program(python=sys.executable, kind="script", target="train.py", args=args)
    env = os.environ if env is None else env
    return trace_script(program, gpu=A100, workdir=str(folder), env=env, timeout_s=timeout_s, forkserver=warm)


def gone(pid):
    deadline = time.monotonic() + PATIENCE_S
    while is_running(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_a_forked_trace_equals_that_of_a_new_process(tmp_path, warm):
    for batch in ("4", "64"):
        assert run(tmp_path, TRAIN, batch, warm=warm).events == run(tmp_path, TRAIN, batch).events
    assert warm.pid is not None


def test_the_fork_server_serves_scripts_with_other_variables_and_folders(tmp_path, warm):
    def peak(width):
        folder = tmp_path / width
        folder.mkdir()
        found = run(folder, TRAIN, "4", warm=warm, env={**os.environ, "WIDTH": width})
        return max(event.bytes for event in found.events)

    small = peak("8")
    process = warm.pid
    assert peak("512") > small
    assert warm.pid == process


def test_a_variable_that_torch_reads_at_its_import_needs_another_process(tmp_path, warm):
    run(tmp_path, TRAIN, "4", warm=warm)
    process = warm.pid
    run(tmp_path, TRAIN, "4", warm=warm, env={**os.environ, "TORCH_LOGS": "all"})
    assert warm.pid not in {None, process}
    assert gone(process)


def test_a_newly_installed_package_needs_another_process(tmp_path, warm):
    packages = tmp_path / "site-packages"
    packages.mkdir()
    env = {**os.environ, "PYTHONPATH": str(packages)}
    run(tmp_path, TRAIN, "4", warm=warm, env=env)
    process = warm.pid
    run(tmp_path, TRAIN, "4", warm=warm, env=env)
    assert warm.pid == process
    (packages / "new.py").touch()
    run(tmp_path, TRAIN, "4", warm=warm, env=env)
    assert warm.pid not in {None, process}
    assert gone(process)


def test_errors_of_a_forked_script_are_its_own(tmp_path, warm):
    with pytest.raises(TraceError, match="ValueError: not today") as failed:
        run(tmp_path, "print('last words'); raise ValueError('not today')", warm=warm)
    assert "last words" in failed.value.log_tail
    assert run(tmp_path, TRAIN, "4", warm=warm).events


def test_a_script_over_its_deadline_ends_and_the_next_one_is_served(tmp_path, warm):
    for timeout_s in (4.0, 30.0, 120.0):  # again, if the script had no time to answer: its fork server is ended then
        run(tmp_path, TRAIN, "4", warm=warm)
        process = warm.pid
        with pytest.raises(TraceError, match="had not finished"):
            run(tmp_path, "import time\nwhile True: time.sleep(1)", warm=warm, timeout_s=timeout_s)
        if warm.pid == process:
            break
    assert warm.pid == process
    assert run(tmp_path, TRAIN, "4", warm=warm).events


def test_a_script_that_holds_the_interpreter_is_killed(tmp_path, warm):
    source = "import ctypes\nprint('begun', flush=True)\nctypes.PyDLL(None).sleep(600)"
    for timeout_s in (5.0, 60.0):  # again, if the deadline came before the script: its thread could still answer
        run(tmp_path, TRAIN, "4", warm=warm)
        process = warm.pid
        with pytest.raises(TraceError, match="had not finished") as failed:
            run(tmp_path, source, warm=warm, timeout_s=timeout_s)
        if "begun" in failed.value.log_tail:
            break
    assert gone(process)
    assert run(tmp_path, TRAIN, "4", warm=warm).events


def test_processes_of_a_script_end_with_it(tmp_path, warm):
    source = """
import os, sys, time
read_end, write_end = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), file=sys.stderr, flush=True)
        os.write(write_end, b"x")
        time.sleep(1000)
    os._exit(0)
os.read(read_end, 1)
raise SystemExit(3)
"""
    with pytest.raises(TraceError) as failed:
        run(tmp_path, source, warm=warm)
    assert gone(int(failed.value.log_tail.split()[0]))


def test_a_script_that_kills_the_fork_server_is_an_error(tmp_path, warm):
    with pytest.raises(TraceError):
        run(tmp_path, "import os, signal; os.kill(os.getppid(), signal.SIGKILL); os._exit(1)", warm=warm, timeout_s=5)
    assert run(tmp_path, TRAIN, "4", warm=warm).events


def test_an_interpreter_without_torch_is_reported_by_a_new_process(tmp_path, warm):
    (tmp_path / "torch.py").write_text("raise ImportError('none here')")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for _ in range(2):
        with pytest.raises(TraceError, match="cannot import torch: none here"):
            run(tmp_path, TRAIN, "4", warm=warm, env=env)
    assert warm.pid is None


def test_an_interpreter_that_does_not_start_is_an_error(tmp_path, warm):
    program = Program(python=str(tmp_path / "none"), kind="script", target="train.py", args=())
    with pytest.raises(TraceError, match="cannot start"):
        trace_script(program, gpu=A100, workdir=str(tmp_path), env=os.environ, forkserver=warm)
