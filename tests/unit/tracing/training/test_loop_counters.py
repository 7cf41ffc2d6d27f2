"""Conditions on loop counters are predicted."""

from __future__ import annotations

import ast
from types import SimpleNamespace

import pytest

from cotenant.tracing.training.loop_counters import Counters, when_true

NAMES = {
    "i": 2,
    "epoch": 0,
    "n": 16,
    "start": 1,
    "data": [0] * 10,
    "args": SimpleNamespace(every=4),
    "rank": 0,
    "s": "x",
    "milestones": [20, 40],
}


@pytest.mark.parametrize(
    ("loop", "test", "rounds"),
    [
        pytest.param("for i in range(99): pass", "i % n == 0", 14, id="every n"),
        pytest.param("for i in range(99): pass", "(i + 1) % args.every == 0", 1, id="an attribute"),
        pytest.param("for i in range(99): pass", "not i % 3", 1, id="a number as truth"),
        pytest.param("for i in range(99): pass", "i in milestones", 18, id="one of a list"),
        pytest.param("for i in range(99): pass", "i + 1 in (2, 8)", 5, id="one of these"),
        pytest.param("for i in range(9): pass", "i in milestones", None, id="none of a list"),
        pytest.param("for i in range(99): pass", "i in s", None, id="part of a text"),
        pytest.param("for i in range(99): pass", "i % n == 0 and rank == 0", 14, id="a known part"),
        pytest.param("for i in range(99): pass", "i % n == 0 and ready()", 14, id="an unknown part"),
        pytest.param("for i in range(0, 99, 2): pass", "i % n == 0", 7, id="a stride"),
        pytest.param("for i in range(10): pass", "i % n == 15", None, id="the loop ends before"),
        pytest.param("for i in range(10): pass", "i == 9", 7, id="the last round of the loop"),
        pytest.param("for i in range(10): pass", "i == 10", None, id="the round after it"),
        pytest.param("for i in range(5, 99): pass", "i % n == 15", 13, id="a loop that this number is not of"),
        pytest.param("for i in range(len(data)): pass", "i % n == 0", 14, id="as often as nobody says"),
        pytest.param("for i, x in zip(data, data): pass", "i == 9", None, id="no counter, though it is a number"),
        pytest.param("for i in tqdm(range(10)): pass", "i % n == 15", None, id="a progress bar"),
        pytest.param("for i, x in enumerate(data): pass", "i == 9", 7, id="the last of the data"),
        pytest.param("for i, x in enumerate(data): pass", "i == 10", None, id="after the last"),
        pytest.param("for i, x in enumerate(data, 1): pass", "i == 10", 8, id="counted from one"),
        pytest.param("for i, x in enumerate(other): pass", "i == 10", 8, id="data of unknown length"),
        pytest.param("while True: i += 2", "i >= n", 7, id="a counter of its own"),
        pytest.param("while True: i += 1", "rank == 0", None, id="no counter"),
        pytest.param("while True: i += 1", "hash(i) == 0", None, id="a call"),
        pytest.param("while True: i += 1", "i % rank == 0", None, id="divided by zero"),
        pytest.param("while True: i += 1", "s == i", None, id="no number"),
        pytest.param("while True: i += 1", "i == 0", None, id="is over"),
    ],
)
def test_the_round_in_which_a_counter_condition_is_true_is_predicted(loop, test, rounds):
    counters = Counters.of(ast.parse(loop).body[0], NAMES)
    assert when_true(ast.parse(test, mode="eval").body, counters, NAMES, first=1) == rounds


@pytest.mark.parametrize(
    ("line", "place", "test", "rounds"),
    [
        pytest.param(2, 4, "n % 17 == 0", 0, id="added to on the way to the condition"),
        pytest.param(2, 4, "n % 18 == 0", 1, id="and once more in the next round"),
        pytest.param(4, 2, "n % 17 == 0", 2, id="added to since the condition was passed"),
        pytest.param(4, 5, "n % 16 == 0", 0, id="not added to in between"),
        pytest.param(2, 4, "i == 3", 1, id="the counter of the loop itself"),
    ],
)
def test_a_counter_is_seen_as_it_will_be_at_the_condition(line, place, test, rounds):
    loop = ast.parse("for i in range(99):\n    step()\n    n += 1\n    pass").body[0]
    counters = Counters.of(loop, NAMES).seen_from(line, place)
    assert when_true(ast.parse(test, mode="eval").body, counters, NAMES, first=0 if place > line else 1) == rounds
