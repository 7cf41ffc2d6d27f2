"""Import path and guards shared by all tests."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from pathlib import Path

import pytest

from cotenant.tracing.process import garbage_collection

sys.path.insert(0, str(Path(__file__).parent))
# Threads of OpenMP that wait for each other in a loop take minutes for milliseconds of work where the cores are shared:
# scikit-learn's fit of 120 rows passed 300 s at a load of 25. libgomp reads this when it is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# A traced script has these in its environment (tracing.process.trace_script). Tests trace in forks of this process, and
# huggingface_hub reads them when it is imported: without them it tries each file six times in 23 s.
for _name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
    os.environ.setdefault(_name, "1")

# Tests of daemons and command lines would read the configuration of the machine's own daemon.
os.environ["COTENANT_SYSTEM_CONFIG"] = "/nonexistent"

# A shell without job control starts background commands with SIGINT ignored, which their processes inherit: those that
# tests interrupt would go on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_OWN_PID = os.getpid()


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect no garbage while tests are collected, and hide them afterwards: 1,500,000 objects, a second to visit."""
    gc.disable()
    result = yield
    garbage_collection.hide_objects()
    gc.enable()
    return result


@pytest.hookimpl(optionalhook=True)  # xdist may be switched off
def pytest_xdist_make_scheduler(config, log):
    if config.getvalue("dist") != "loadfile":
        return None
    from file_order import LongFilesFirst

    config.option.loadscopereorder = False  # the order is that of the collection
    return LongFilesFirst(config, log)


def pytest_collection_modifyitems(config, items):
    """In a process of xdist: the order in which files are assigned."""
    if hasattr(config, "workerinput"):
        from file_order import sorted_by_length

        items[:] = sorted_by_length(items)


@pytest.fixture(scope="session", autouse=True)
def _shared_fork_server():
    from shared_fork_server import sharing_a_fork_server

    with sharing_a_fork_server():
        yield


@pytest.fixture(autouse=True)
def _own_log():
    """Undo what `cotenant daemon` in this process does to the log: its handler writes to a stream that the test closes.

    Each record would then print two tracebacks, and Python 3.11 parses the lines of a traceback: two threads that parse
    at once can raise "AST constructor recursion depth mismatch" (CPython issue 106905).
    """
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def pytest_runtest_setup():
    """Forbid autograd in the pytest process: its forks could not trace functions afterwards."""
    torch = sys.modules.get("torch")
    if torch is None or getattr(torch.autograd.backward, "guards", False):
        return
    backward = torch.autograd.backward

    def guarded(*args, **kwargs):
        assert os.getpid() != _OWN_PID, "train `apart`: later tests trace functions in forks of this process"
        return backward(*args, **kwargs)

    guarded.guards = True
    torch.autograd.backward = guarded


def pytest_sessionfinish():
    """End the Slurm that tests of this process have shared."""
    clusters = sys.modules.get("slurm_clusters")
    if clusters is not None:
        clusters.stop_shared()
