"""The collector is off for as long as it is paused, and then as it was."""

from __future__ import annotations

import gc

import pytest

from cotenant.osutil.garbage_collection import collection_paused
from cotenant.sim import cluster
from cotenant.sim.simulate import simulate
from worlds import NO_DELAY, Eager, Halves, a_trace


@pytest.fixture
def gc_state():
    was_on = gc.isenabled()
    yield
    (gc.enable if was_on else gc.disable)()


@pytest.mark.usefixtures("gc_state")
@pytest.mark.parametrize("is_on", [True, False])
def test_the_collector_is_as_it_was_even_after_an_error(is_on):
    (gc.enable if is_on else gc.disable)()
    with collection_paused():
        assert not gc.isenabled()
    assert gc.isenabled() == is_on
    with pytest.raises(KeyError), collection_paused():
        raise KeyError
    assert gc.isenabled() == is_on


class _Watching(Eager):
    """Knows whether the collector was on when it decided."""

    was_on: bool | None = None

    def decide(self, queue, server):
        self.was_on = gc.isenabled()
        return super().decide(queue, server)


def test_a_simulation_runs_without_the_collector():
    policy = _Watching()
    simulate(
        a_trace((0.0, 100.0, 1, None)), cluster.parse("1xA100-40GB"), policy, interference=Halves(), config=NO_DELAY
    )
    assert policy.was_on is False
