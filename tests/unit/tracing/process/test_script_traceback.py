"""Hints about errors that a script raises because of where it is traced."""

from __future__ import annotations

import pytest

from cotenant.tracing.process.script_traceback import describe, hint_for

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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no such split", "no such split"),
        ("no such split\nsee the manual", "no such split"),
        ("cannot load:\nno such file", "cannot load: no such file"),
        (
            "Error downloading a.gz:\nTried https://a.example/, got:\n<urlopen error refused>\nTried again",
            "Error downloading a.gz: Tried https://a.example/, got: <urlopen error refused>",
        ),
        ("cannot load:", "cannot load:"),
    ],
)
def test_a_message_goes_on_after_each_colon(text, shown):
    assert describe(RuntimeError(text)) == shown
