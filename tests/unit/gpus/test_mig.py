"""The commands that create a layout of MIG instances, with an `nvidia-smi` that notes them."""

from __future__ import annotations

import pytest

from cotenant.core.errors import BackendError
from cotenant.core.mig import layout_of, parse_profiles
from cotenant.gpu_specs import gpu_spec
from cotenant.gpus import mig

A100 = parse_profiles([(profile.name, profile.memory_bytes) for profile in gpu_spec("A100-40GB").mig])


def test_placements_are_given_to_the_driver():
    """Put at place 0, the large one would leave room for three small ones only."""
    layout = layout_of(["3g.20gb", *["1g.5gb"] * 4], A100)
    assert mig.commands(2, layout, had_instances=True) == [
        ["nvidia-smi", "mig", "-i", "2", "-dci"],
        ["nvidia-smi", "mig", "-i", "2", "-dgi"],
        ["nvidia-smi", "mig", "-i", "2", "-cgi", "3g.20gb:4,1g.5gb:0,1g.5gb:1,1g.5gb:2,1g.5gb:3", "-C"],
    ]
    assert len(mig.commands(2, layout, had_instances=False)) == 1


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """An `nvidia-smi` that notes its arguments and ends as `code` says; gives the path of the notes."""

    def make(script="exit 0"):
        program = tmp_path / "nvidia-smi"
        program.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/notes\n{script}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return tmp_path / "notes"

    return make


def test_apply_runs_the_commands_in_order(smi):
    notes = smi("echo Successfully created")
    commands = mig.apply(0, layout_of(["7g.40gb"], A100), had_instances=True)
    assert notes.read_text().splitlines() == ["mig -i 0 -dci", "mig -i 0 -dgi", "mig -i 0 -cgi 7g.40gb:0 -C"]
    assert commands == ["Successfully created"] * 3


def test_apply_stops_at_the_first_failure(smi):
    notes = smi('case "$*" in *-dgi) echo "In use by another client" >&2; exit 19;; esac')
    with pytest.raises(BackendError, match=r"-dgi` failed: In use by another client; 1 commands succeeded before"):
        mig.apply(0, layout_of(["7g.40gb"], A100), had_instances=True)
    assert len(notes.read_text().splitlines()) == 2


def test_apply_without_nvidia_smi_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendError, match="does not work"):
        mig.apply(0, layout_of(["7g.40gb"], A100), had_instances=False)
