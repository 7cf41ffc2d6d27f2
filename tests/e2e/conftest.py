"""Fixtures of a real daemon on a simulated server."""

from __future__ import annotations

import pytest

from sites import open_site


@pytest.fixture
def site():
    """A site without a daemon. Afterwards all of its jobs are cancelled, and no process may be left."""
    with open_site() as site:
        yield site


@pytest.fixture
def server(site):
    """A site with a daemon."""
    return site.start()
