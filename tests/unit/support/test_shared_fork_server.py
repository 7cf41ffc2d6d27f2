"""The fork server that estimates of tests share."""

from __future__ import annotations

import os

import pytest

from cotenant.estimators import traced
from shared_fork_server import sharing_a_fork_server


@pytest.mark.parametrize(
    ("name", "shared"), [("TORCHINDUCTOR_CACHE_DIR", True), ("HF_HOME", True), ("TORCH_SHOW_CPP_STACKTRACES", False)]
)
def test_a_server_is_shared_unless_the_environment_decides_how_torch_is_loaded(monkeypatch, name, shared):
    """PyTorch sets the first once its compiler is loaded, and each later estimate started a process: 2 s of CPU."""
    monkeypatch.setattr(traced, "trace_program", lambda *, env, forkserver: forkserver)
    with sharing_a_fork_server():
        found = traced.trace_program(env={**os.environ, name: "x"}, forkserver=None)
    assert (found is not None) == shared
