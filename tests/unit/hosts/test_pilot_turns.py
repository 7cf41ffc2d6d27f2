"""Turns of a pilot on stand-ins: what it requests, what it gives back, and what counts as a failure.

The real workload managers are in `tests/needs_slurm` and `tests/needs_ray`; here are the turns that need a clock.
"""

from __future__ import annotations

import itertools

import pytest

from cotenant.core.errors import BackendError
from cotenant.hosts.allocations import AllocationReport
from cotenant.hosts.pilot import ACCEPTED_WITHIN_S, Pilot
from cotenant.hosts.pilot_decision import MAX_FAILURES, PilotLimits

IDLE_S, RETRY_S = 300.0, 60.0
ALLOCATION_S = 3600.0
LIMITS = PilotLimits(min_allocations=0, max_allocations=4, backlog=4, idle_s=IDLE_S, retry_s=RETRY_S)


class FakeManager:
    """A workload manager whose allocations run at once, for an hour, while `runs`."""

    manager, noun = "Slurm", "job"

    def __init__(self):
        self.names, self.cancelled, self.refusal, self.runs, self.is_silent = [], [], "", True, False
        self.before_report = lambda: None

    def request(self, name, command, log):
        if self.refusal:
            raise BackendError(self.refusal)
        self.names.append(name)
        return str(len(self.names))

    def report(self, names):
        if self.is_silent:
            raise BackendError("Slurm does not answer")
        self.before_report()
        state = {"state": "running", "word": "RUNNING"} if self.runs else {"state": "pending", "word": "PENDING"}
        length = {"length_s": ALLOCATION_S, "ends_at_s": ALLOCATION_S if self.runs else None}
        return {
            name: AllocationReport(job_id=str(self.names.index(name) + 1), node="n1", **state, **length)
            for name in names
            if name in self.names and str(self.names.index(name) + 1) not in self.cancelled
        }

    def cancel(self, note):
        self.cancelled.append(note.job_id)

    def launcher(self, note):
        return ["srun"]


class FakeEngine:
    """Hosts whose agents answer at once."""

    def __init__(self):
        self.hosts, self.used, self.retired = [], set(), set()

    def add_host(self, host, command):
        self.hosts.append(host)

    def retire_host(self, host, *, even_used=False):
        self.retired.add(host)
        return even_used or host not in self.used

    def has_attempts(self, host):
        return host in self.used

    def is_heard(self, host):
        return host in self.hosts

    def doubted(self):
        return frozenset()

    def believe(self, host, refs):
        pass

    def complaint(self, host):
        return ""

    def set_end(self, host, at_s):
        pass

    def drop_host(self, host, why):
        self.hosts.remove(host)


class Turns:
    """A pilot, its stand-ins, and a clock."""

    def __init__(self, folder):
        self.manager, self.engine, self.folder, self.now_s = FakeManager(), FakeEngine(), folder, 0.0
        self.waiting, self.listed, self.supply = {}, frozenset(), ("", 0.0)
        self.restart()

    def restart(self):
        self.pilot = Pilot(
            self.engine, self.manager, self.folder, LIMITS, keeper=[], agent=[], poll_s=1.0, now=lambda: self.now_s
        )
        self.pilot._scheduler_view = lambda: (self.waiting, self.listed)
        self.pilot._set_supply = lambda why, longest_s: setattr(self, "supply", (why, longest_s))

    def turn(self, at_s):
        self.now_s = at_s
        self.pilot.turn()

    @property
    def failures(self):
        return self.pilot._record.failures

    @property
    def states(self):
        return [allocation["state"] for allocation in self.pilot.status()["allocations"]]


@pytest.fixture
def turns(tmp_path):
    """A pilot that has an allocation, ready since second 1."""
    turns = Turns(tmp_path)
    turns.waiting = {1: 0.0}
    turns.turn(0.0)
    turns.turn(1.0)
    assert turns.states == ["ready"]
    return turns


@pytest.mark.parametrize(
    ("time_limit_s", "failures"),
    [(0.0, 1), (60.0, 1), (ALLOCATION_S, 0)],
    ids=["no limit", "it would have ended in time", "it would have been cut off"],
)
def test_gpus_that_no_waiting_job_took_are_a_failure_if_one_had_time(turns, time_limit_s, failures):
    turns.waiting = {1: time_limit_s}
    turns.turn(2.0)
    turns.turn(2.0 + IDLE_S)
    assert turns.manager.cancelled == ["1"]
    assert turns.failures == failures


@pytest.mark.parametrize("waits_in_the_end", [False, True])
def test_gpus_that_a_job_has_used_are_no_failure(turns, waits_in_the_end):
    turns.waiting, turns.engine.used = {}, {"n1.1"}
    turns.turn(2.0)
    turns.engine.used = set()
    turns.waiting = {2: 0.0} if waits_in_the_end else {}
    turns.turn(3.0)
    turns.turn(2.0 + IDLE_S)
    assert turns.manager.cancelled == []  # it is idle since second 3
    turns.turn(3.0 + IDLE_S)
    assert turns.manager.cancelled == ["1"]
    assert turns.failures == 0


def test_an_allocation_with_attempts_is_not_given_back(turns):
    turns.waiting, turns.engine.used = {}, {"n1.1"}
    turns.turn(2.0)
    turns.turn(2.0 + 2 * IDLE_S)
    assert turns.manager.cancelled == []
    assert turns.states == ["ready"]


def test_an_allocation_that_is_listed_no_more_is_forgotten_after_two_answers(turns):
    turns.waiting = {}
    turns.manager.cancelled = ["1"]
    turns.turn(2.0)
    assert turns.states == ["ready"]
    turns.turn(3.0)
    assert turns.states == []
    assert turns.engine.hosts == []
    assert turns.failures == 0  # it had given GPUs


def test_a_host_that_ended_while_the_manager_was_asked_is_dropped_once_its_gpus_are_listed_no_more(turns):
    """Its GPUs were listed after the turn had begun: a drop at once would have its jobs placed there again."""

    def start_and_end():
        turns.manager.cancelled, turns.listed = ["1"], frozenset({"n1.1"})

    turns.waiting, turns.manager.before_report = {}, start_and_end
    for at_s in (2.0, 3.0):  # believed after two answers
        turns.turn(at_s)
    assert turns.engine.retired == {"n1.1"}
    assert turns.engine.hosts == ["n1.1"]
    assert turns.states == ["released"]
    turns.manager.before_report = lambda: setattr(turns, "listed", frozenset())
    turns.turn(4.0)
    assert turns.engine.hosts == []
    assert turns.states == []


def test_a_job_that_starts_while_the_manager_is_asked_is_not_waiting_for_another_allocation(tmp_path):
    turns = Turns(tmp_path)
    turns.waiting = {1: 0.0}
    turns.turn(0.0)
    assert len(turns.manager.names) == 1

    def start_the_job():  # the question takes seconds where slurmctld is busy
        turns.engine.used, turns.waiting = {"n1.1"}, {}

    turns.manager.before_report = start_the_job
    turns.turn(1.0)
    assert turns.states == ["ready"]
    assert len(turns.manager.names) == 1


def test_an_allocation_that_gets_a_job_as_it_is_given_back_stays_and_is_no_failure(turns):
    turns.waiting = {1: 0.0}
    turns.turn(2.0)
    looked = turns.engine.has_attempts
    turns.engine.has_attempts = lambda host: looked(host) or turns.engine.used.add(host)  # the next moment
    turns.turn(2.0 + IDLE_S)
    assert turns.manager.cancelled == []
    assert turns.failures == 0


def test_nothing_is_decided_while_the_manager_does_not_answer(turns):
    turns.manager.is_silent = True
    with pytest.raises(BackendError, match="does not answer"):
        turns.turn(2.0 + 2 * IDLE_S)
    assert turns.manager.cancelled == []
    assert turns.states == ["ready"]


def test_refused_requests_are_tried_again_later_and_later_and_then_no_more(tmp_path):
    turns = Turns(tmp_path)
    turns.waiting, turns.manager.refusal = {1: 0.0}, "Invalid account"
    tried_at_s = []
    for second in range(0, 4000, 10):
        before = len(list(tmp_path.glob("*.json")))
        turns.turn(float(second))
        if len(list(tmp_path.glob("*.json"))) > before:
            tried_at_s.append(second)
    gaps_s = [later - earlier for earlier, later in itertools.pairwise(tried_at_s)]
    assert turns.failures == MAX_FAILURES == len(tried_at_s)
    assert gaps_s == sorted(gaps_s)
    assert gaps_s[0] >= RETRY_S
    assert "paused" in turns.supply[0]
    assert "Invalid account" in turns.supply[0]


def test_a_request_whose_answer_was_lost_is_found_by_its_name(tmp_path):
    turns = Turns(tmp_path)
    turns.waiting, turns.manager.refusal = {1: 0.0}, "Socket timed out"
    turns.turn(0.0)
    (note,) = tmp_path.glob("*.json")
    turns.manager.names.append(note.stem)  # it was accepted all the same
    turns.turn(1.0)
    assert turns.states == ["ready"]
    assert turns.failures == 0


def test_a_request_of_a_daemon_that_was_killed_is_forgotten_if_it_was_never_listed(tmp_path):
    turns = Turns(tmp_path)
    turns.waiting, turns.manager.refusal = {1: 0.0}, "killed here"
    turns.turn(0.0)
    turns.restart()
    turns.manager.refusal = ""
    turns.turn(ACCEPTED_WITHIN_S)
    assert turns.states == ["requested"]
    turns.turn(ACCEPTED_WITHIN_S + 1.0)
    assert turns.states == []
    assert turns.manager.names == []


def test_pending_gpus_are_given_back_when_nobody_waits(tmp_path):
    turns = Turns(tmp_path)
    turns.waiting, turns.manager.runs = {1: 0.0}, False
    turns.turn(0.0)
    turns.turn(1.0)
    assert turns.states == ["pending"]
    turns.waiting = {}
    turns.turn(2.0)
    turns.turn(2.0 + IDLE_S)
    assert turns.manager.cancelled == ["1"]
    assert turns.failures == 0
