"""`cotenant doctor --patches`: what a trace replaces in the installed torch."""

from __future__ import annotations

import json

import pytest

from cotenant.cli.main import main

pytest.importorskip("torch", reason="patches are those of torch")


def test_patches_are_listed_with_target_and_reason(capsys):
    assert main(["doctor", "--patches", "--json"]) == 0
    patches = json.loads(capsys.readouterr().out)["patches"]
    targets = {patch["target"] for patch in patches}
    assert "torch.cuda:is_available" in targets
    assert all(patch["reason"] for patch in patches)
    assert main(["doctor", "--patches"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["PHASE", "TARGET", "PRESENT", "REASON"]
    assert len(lines) == len(patches) + 1
