"""Residents in the table of GPUs."""

from __future__ import annotations

import pytest

from cotenant.cli.gpus import _residents


def a_resident(job_id, name="bert", idle_s=None):
    return {"job_id": job_id, "name": name, "idle_s": idle_s}


@pytest.mark.parametrize(
    ("residents", "text"),
    [
        pytest.param([], "-", id="none"),
        pytest.param([a_resident(17), a_resident(18, idle_s=0.0)], "17:bert 18:bert(idle)", id="one is idle"),
        pytest.param([a_resident(17), a_resident(None, None)], "17:bert 1 of others", id="another user's"),
    ],
)
def test_residents_are_named(residents, text):
    assert _residents(residents) == text
