"""Hints about errors that a script raises because of where it is traced."""

from __future__ import annotations

import pytest

from cotenant.tracing.process.script_traceback import hint_for

RENDEZVOUS = (
    "Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set"
)


@pytest.mark.parametrize("error", [KeyError("LOCAL_RANK"), KeyError("WORLD_SIZE"), ValueError(RENDEZVOUS)])
def test_a_script_for_torchrun_is_to_be_estimated_with_its_launcher(error):
    assert "cotenant estimate -- torchrun" in (hint_for(error) or "")


@pytest.mark.parametrize(
    "error", [KeyError("lr"), KeyError(), KeyError(["RANK"]), ValueError("RANK"), LookupError("RANK")]
)
def test_other_errors_have_no_hint_about_launchers(error):
    assert hint_for(error) is None
