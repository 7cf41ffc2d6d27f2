"""Root's daemon on simulated GPUs, and three real users of the machine who do not trust each other."""

from __future__ import annotations

import pytest

from people import Person, made_users, needs_users, open_to_users, start_for_all
from sites import open_site


def pytest_collection_modifyitems(items):
    """Skip what asks for users where none can be made."""
    for item in items:
        if "users" in getattr(item, "fixturenames", ()):
            item.add_marker(needs_users)


@pytest.fixture(scope="session")
def users():
    """Accounts of three new users with homes, removed after the session."""
    with made_users(3) as accounts:
        yield accounts


@pytest.fixture
def site(users):
    """A site that every user reaches, without a daemon; `start_for_all(site)` starts it, with flags and environment."""
    with open_site() as site:
        yield open_to_users(site)


@pytest.fixture
def people_of(users):
    """The three users at terminals on a site."""
    return lambda site: [Person(site, account) for account in users]


@pytest.fixture
def people(site, users):
    """Three users of a daemon of their own: for attacks that may break it."""
    start_for_all(site)
    return [Person(site, account) for account in users]


@pytest.fixture(scope="module")
def shared_people(users):
    """Three users of one daemon for all tests of a file, for attacks that leave nothing behind."""
    with open_site() as site:
        start_for_all(open_to_users(site))
        yield [Person(site, account) for account in users]
