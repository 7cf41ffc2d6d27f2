"""Preloaded modules hold no reference to an object that a trace patches: a fork traces as a new process does."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from cotenant.tracing.process.forkserver_client import _ONE_THREAD
from traced_scripts import A100

pytest.importorskip("torch", reason="tracing needs torch")

LOOK = """
import importlib, json, sys, types, warnings
from pathlib import Path
import torch
from cotenant.tracing.process import forkserver

warnings.simplefilter("ignore")
forkserver._preload()
before, later = set(sys.modules), [*forkserver._PRELOADED_WHEN_IDLE, *sys.argv[2:]]
while later:
    forkserver._preload_one(later)
modules = {name: module for name, module in list(sys.modules.items()) if isinstance(module, types.ModuleType)}
held = {name: dict(vars(module)) for name, module in modules.items()}

from cotenant.tracing.process.session import TracingSession
request = {"gpu": json.loads(sys.argv[1]), "options": {"sandbox": False, "allow_network": True},
           "program": {"kind": "script", "target": "train.py", "args": []}}
TracingSession(request, Path("answer"))
replaced = {
    id(value): f"{name}.{key}"
    for name, values in held.items()
    for key, value in values.items()
    if callable(value) and vars(modules[name]).get(key) is not value
}
stale = [
    f"{name}.{key} is {replaced[id(value)]}"
    for name in modules.keys() - before
    for key, value in vars(modules[name]).items()
    if id(value) in replaced
]
print(json.dumps({"replaced": len(replaced), "stale": stale}))
"""
COMPILER = (
    "torch._dynamo",
    "torch.distributed._functional_collectives.legacy_",
    "torch._inductor.utils.get_interface_for_device",
)
"""Where the compiler looks up what it shall translate; it reads the script's functions, not those of a trace. The last
is of a module that a trace loads again, in the same namespace, which the function still reads."""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """How many objects a trace replaces, and the references that preloaded modules hold; `keeper` holds one."""
    folder = tmp_path_factory.mktemp("look")
    (folder / "keeper.py").write_text("from torch.cuda import is_available\n")
    (folder / "look.py").write_text(LOOK)
    words = [sys.executable, "look.py", json.dumps(A100), "keeper"]
    env = {**os.environ, **_ONE_THREAD}
    done = subprocess.run(words, cwd=folder, env=env, check=True, capture_output=True, text=True, timeout=120)
    return json.loads(done.stdout.splitlines()[-1])


def test_preloaded_modules_hold_no_reference_to_a_patched_object(found):
    assert found["replaced"] > 100
    assert [name for name in found["stale"] if not name.startswith((*COMPILER, "keeper."))] == []


def test_a_stale_reference_is_detected(found):
    assert "keeper.is_available is torch.cuda.is_available" in found["stale"]
