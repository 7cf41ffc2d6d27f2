"""`cotenant doctor --patches`: what a trace replaces in the installed torch."""

from __future__ import annotations

import json
import subprocess
import sys


def doctor(*words):
    """In a process of its own: listing the patches imports all of the tracer."""
    command = [sys.executable, "-m", "cotenant", "doctor", "--patches", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def test_patches_are_listed_with_target_and_reason():
    patches = json.loads(doctor("--json"))["patches"]
    targets = {patch["target"] for patch in patches}
    assert "torch.cuda:is_available" in targets
    assert all(patch["reason"] for patch in patches)
    lines = doctor().splitlines()
    assert lines[0].split() == ["PHASE", "TARGET", "PRESENT", "REASON"]
    assert len(lines) == len(patches) + 1
