"""The MPS monitor attributes failures and restarts control daemons that exited."""

from __future__ import annotations

import pytest

from cotenant.core.errors import BackendError
from cotenant.daemon.services.mps_monitor import RECENT_S, MpsMonitor
from cotenant.gpus.mps import MpsState

ANN, BOB = ("GPU-a", 1), ("GPU-a", 2)


class Mps:
    """Control daemons in the states that a test gives them."""

    def __init__(self):
        self.states = {ANN: "ACTIVE", BOB: "ACTIVE"}
        self.started = []
        self.broken = False

    def known(self):
        return set(self.states)

    def state(self, uuid, uid):
        status = self.states[uuid, uid]
        return MpsState(is_running=status is not None, servers={} if status is None else {7: status})

    def client_env(self, uuid, uid, **_):
        if self.broken:
            raise BackendError("MPS does not start")
        self.started.append((uuid, uid))
        self.states[uuid, uid] = "ACTIVE"
        return {}

    def stop_all_but(self, in_use):
        for owner in self.states.keys() - in_use:
            self.states[owner] = None  # asked to quit; its folder is still there


class Bench:
    def __init__(self):
        self.mps = Mps()
        self.now_s = 100.0
        self.monitor = MpsMonitor(self.mps, now=lambda: self.now_s)

    def failed(self, owner=ANN, *, ran_s=50.0, others=True):
        return self.monitor.server_failed_under(owner, ran_s=ran_s, has_other_clients=others)


@pytest.fixture
def bench():
    return Bench()


def test_a_failure_under_a_working_mps_server_is_the_jobs_own(bench):
    assert not bench.failed()


def test_exits_of_all_clients_of_a_failed_server_are_attributed_to_it(bench):
    bench.mps.states[ANN] = "FAULT"
    assert bench.failed()
    bench.mps.states[ANN] = "ACTIVE"  # all have gone, or nearly
    bench.now_s += 3.0
    assert bench.failed(others=False)
    assert not bench.failed(BOB)


def test_the_only_client_of_a_failed_server_caused_the_fault(bench):
    bench.mps.states[ANN] = "FAULT"
    assert not bench.failed(others=False)


def test_a_client_that_started_after_the_fault_is_unaffected(bench):
    bench.mps.states[ANN] = "FAULT"
    bench.monitor.check()
    bench.mps.states[ANN] = "ACTIVE"
    bench.now_s += 10.0
    assert not bench.failed(ran_s=9.9)
    assert bench.failed(ran_s=10.0)


def test_a_client_that_fails_long_after_the_fault_is_unaffected(bench):
    bench.mps.states[ANN] = "FAULT"
    bench.monitor.check()
    bench.mps.states[ANN] = "ACTIVE"
    bench.now_s += RECENT_S + 0.1
    assert not bench.failed(ran_s=1e6)


def test_a_control_daemon_that_exited_is_restarted(bench, caplog):
    bench.mps.states[ANN] = None
    bench.monitor.check()
    assert bench.mps.started == [ANN]
    assert "control daemon ended" in caplog.text
    assert bench.failed(others=False)
    bench.monitor.check()
    assert bench.mps.started == [ANN]


def test_a_control_daemon_that_was_stopped_is_not_restarted(bench):
    bench.monitor.stop_all_but({BOB})
    bench.monitor.check()
    assert bench.mps.started == []
    bench.monitor.client_env(*ANN)  # somebody needs it again
    bench.mps.states[ANN] = None
    bench.monitor.check()
    assert bench.mps.started == [ANN, ANN]


def test_a_failed_restart_of_a_control_daemon_is_logged_and_retried(bench, caplog):
    bench.mps.states[ANN] = None
    bench.mps.broken = True
    bench.monitor.check()
    assert "cannot restart the MPS control daemon" in caplog.text
    bench.mps.broken = False
    bench.monitor.check()
    assert bench.mps.started == [ANN]


def test_a_fault_is_logged_once(bench, caplog):
    bench.mps.states[ANN] = "FAULT"
    for _ in range(3):
        bench.monitor.check()
        bench.now_s += 5.0
    assert caplog.text.count("took down the MPS server") == 1
