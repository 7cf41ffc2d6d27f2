"""A dry run while the daemon ends: its thread must not wait for an estimate that nobody makes any more."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

from builders import a_spec
from cotenant.core.errors import CotenantError
from cotenant.daemon.api.handlers.jobs_api import JobsApi


class Estimates:
    """An estimator that answers only when it is ended."""

    def __init__(self):
        self.ended = threading.Event()

    def estimate_spec(self, spec):
        assert self.ended.wait(10.0), "not ended"
        raise CotenantError("ended")

    def end_trials(self):
        self.ended.set()


def test_a_dry_run_ends_with_the_daemon():
    async def previewed():
        estimates, closing = Estimates(), asyncio.Event()
        api = JobsApi(SimpleNamespace(estimates=estimates, closing=closing, policy=None, now=None, loop=None))
        preview = asyncio.create_task(api._preview(a_spec()))
        await asyncio.sleep(0)
        closing.set()
        await asyncio.wait({preview})
        return str(preview.exception())

    assert asyncio.run(previewed()) == "ended"
