"""One fork server for the traces of all estimates that are made in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from cotenant.estimators import traced
from cotenant.tracing.process.forkserver_client import _STARTUP_VARIABLES, ForkServerClient

_SET_BY_TORCH = "TORCHINDUCTOR_CACHE_DIR"
"""A variable that PyTorch sets when its compiler is loaded, as in a process that has traced a script in a fork."""


@contextmanager
def sharing_a_fork_server() -> Iterator[None]:
    """Run scripts that `TracedEstimator` traces in forks of one server: a process of its own imports torch in 2 s.

    Scripts whose environment decides how torch is loaded keep their process. `test_tracing_process` and
    `test_tracing_warm` test processes, forks, and that both give the same trace.
    """
    trace_script = traced.trace_program
    usual = _startup_variables(os.environ)
    with ForkServerClient() as shared, pytest.MonkeyPatch.context() as patch:

        def trace(*args: Any, env: Mapping[str, str], forkserver: ForkServerClient | None, **more: Any) -> Any:
            if _startup_variables(env) == usual:
                forkserver = shared
            return trace_script(*args, env=env, forkserver=forkserver, **more)

        patch.setattr(traced, "trace_program", trace)
        yield


def _startup_variables(env: Mapping[str, str]) -> dict[str, str]:
    names = (name for name in env if name.startswith(_STARTUP_VARIABLES) and name != _SET_BY_TORCH)
    return {name: env[name] for name in names}
