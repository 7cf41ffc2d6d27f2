"""Conditions on loop counters are predicted, and the sizes that a loop takes by its counter."""

from __future__ import annotations

import ast
import runpy
from types import SimpleNamespace

import pytest

from cotenant.tracing.training.loop_conditions import settled, when_true
from cotenant.tracing.training.loop_counters import Counters
from cotenant.tracing.training.loop_sizes import larger_sizes, size_of, sizes_to_come


class EasyDict(dict):
    """A dict whose entries are attributes."""


NODE = type("AnyNode", (SimpleNamespace,), {"__module__": "omegaconf.nodes"})

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
    "sizes": {0: 16, 20: 32, 40: 64},
    "cfg": {"val": {"every": 10}},
    "easy": EasyDict(every=6),
    "hydra": SimpleNamespace(_content={"every": NODE(_val=9)}),
    "config": SimpleNamespace(_fields={"every": 11}),
}


@pytest.mark.parametrize(
    ("loop", "test", "rounds"),
    [
        pytest.param("for i in range(99): pass", "i % n == 0", 14, id="every n"),
        pytest.param("for i in range(99): pass", "(i + 1) % args.every == 0", 1, id="an attribute"),
        pytest.param("for i in range(99): pass", "not i % 3", 1, id="a number as truth"),
        pytest.param("for i in range(99): pass", "i % cfg['val']['every'] == 0", 8, id="an entry of a dict"),
        pytest.param("for i in range(99): pass", "i % easy.every == 0", 4, id="an entry as an attribute"),
        pytest.param("for i in range(99): pass", "i % hydra.every == 0", 7, id="a configuration of OmegaConf"),
        pytest.param("for i in range(99): pass", "i % config.every == 0", 9, id="one of ml_collections"),
        pytest.param("for i in range(99): pass", "i % cfg['other'] == 0", None, id="an entry that is not there"),
        pytest.param("while n > 0: n -= 1", "n % 9 == 0", 7, id="what is left"),
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
        pytest.param("for i in range(99): pass", "i not in (3, 4)", 3, id="none of these"),
        pytest.param("for i in range(9): n += 1", "n == 30", 14, id="a number that does not end with the loop"),
        pytest.param("while True: i = i + 1", "i == 9", 7, id="a sum"),
        pytest.param("while True: i = n + i", "i == 34", 2, id="a sum, the other way"),
        pytest.param("while True: i = n + 1", "i == 9", None, id="a sum of others"),
        pytest.param("while True: i = i - 1", "i == 1", None, id="a difference"),
        pytest.param("for i in range(99): pass", "5 <= i < 9", 3, id="a chain"),
        pytest.param("for i in range(99): pass", "1 < rank < i", None, id="a chain that is never true"),
        pytest.param("for i in range(99): pass", "5 <= i < unknown", None, id="a chain with a part that is not known"),
        pytest.param("for i in range(99): n = measure()", "i > 8 and n > 20", 7, id="a number that the loop measures"),
        pytest.param("for i in range(99): args.every = f()", "i > 8 and args.every > 5", 7, id="an attribute it sets"),
        pytest.param("for i in range(99): n = measure()", "n > 8", None, id="no counter beside it"),
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


@pytest.mark.parametrize(
    ("loop", "source", "largest"),
    [
        pytest.param("for i in range(9): pass", "[64, 128, 96][i % 3]", ((128,), 2), id="in turn"),
        pytest.param("for i in range(9): pass", "[(8, 9), (9, 9)][i % 2]", ((9, 9), 1), id="of two numbers"),
        pytest.param("for i in range(9): pass", "milestones[i // 4]", ((40,), 2), id="of a list with a name"),
        pytest.param("for i in range(3): pass", "[1, 2, 3, 4][i]", ((3,), 0), id="the loop ends before"),
        pytest.param("for i in range(99): pass", "[1, 2, 3, 4][i]", ((4,), 1), id="the list ends before"),
        pytest.param("for i in range(9): pass", "[64, 128][rank]", None, id="by no counter"),
        pytest.param("for i in range(9): pass", "[64, 'auto'][i % 2]", None, id="a text among them"),
        pytest.param("for i in range(9): pass", "[64, 0][i % 2]", None, id="none among them"),
        pytest.param("for i in range(9): pass", "[64, n * 2][i % 2]", None, id="a sum among them"),
        pytest.param("for i in range(9): pass", "s[i]", None, id="a letter"),
        pytest.param("for i in range(9): pass", "milestones[unknown]", None, id="by what is not known"),
        pytest.param("for i in range(99): pass", "min(48, 16 + i // 10 * 8)", ((48,), 38), id="by a formula"),
        pytest.param("for i in range(99): pass", "64 if i < 50 else 128", ((128,), 48), id="by a condition"),
        pytest.param("for i in range(99): pass", "sizes.get(i, size)", ((64,), 38), id="an entry of a dict"),
        pytest.param("for i in range(99): pass", "min(0.5, i / 10)", None, id="no whole number"),
        pytest.param("for i in range(99): pass", "min(48, unknown)", None, id="by a formula that is not known"),
    ],
)
def test_the_largest_size_of_a_list_and_its_round(loop, source, largest):
    counters = Counters.of(ast.parse(loop).body[0], NAMES)
    found = larger_sizes(ast.parse(source, mode="eval").body, counters, NAMES)
    assert ((found[-1].size, found[-1].rounds) if found else None) == largest


def test_all_sizes_on_the_way_to_the_largest_are_found():
    counters = Counters.of(ast.parse("for i in range(99): pass").body[0], NAMES)
    found = larger_sizes(ast.parse("[8, 16, 12, 32][(i - 2) // 5 % 4]", mode="eval").body, counters, NAMES)
    assert [(size.size, size.rounds) for size in found] == [((8,), 0), ((16,), 5), ((32,), 15)]


@pytest.mark.parametrize(
    ("target", "over", "sizes"),
    [
        pytest.param("n", "(8, 16, 12, 32)", [((16,), 0), ((32,), 2)], id="the rest of a list"),
        pytest.param("n, i", "[(16, 2), (16, 4)]", [((16, 2), 0), ((16, 4), 1)], id="of two numbers"),
        pytest.param("i", "milestones", [], id="the present one is not in it"),
        pytest.param("n", "(16, 32, 16)", [], id="the present one is in it twice"),
        pytest.param("n", "loader", [], id="no list"),
    ],
)
def test_the_sizes_that_a_loop_over_them_comes_to(target, over, sizes):
    found = sizes_to_come(*(ast.parse(text, mode="eval").body for text in (target, over)), NAMES)
    assert [(size.size, size.rounds) for size in found] == sizes


@pytest.mark.parametrize(
    ("target", "size"),
    [("n", 16), ("n, epoch", 0), ("n, i", 32), ("pair", 12), ("milestones", 0), ("s", 0), ("unknown", 0), ("args", 0)],
)
def test_a_size_is_a_number_or_the_product_of_several(target, size):
    assert size_of(ast.parse(target, mode="eval").body, {**NAMES, "pair": (3, 4)}) == size


@pytest.mark.parametrize(
    ("test", "is_true"),
    [
        pytest.param("n == 16", True, id="of its own code"),
        pytest.param("rank == 0", None, id="that others may assign"),
        pytest.param("i == 2", None, id="that it assigns"),
        pytest.param("s == 'x'", True, id="a text"),
        pytest.param("args.every == 4", True, id="an option"),
        pytest.param("not args.every == 4", False, id="negated"),
        pytest.param("not rank", None, id="not known, negated"),
        pytest.param("n == 16 and rank", None, id="both, one not known"),
        pytest.param("n == 8 and rank", False, id="both, one false"),
        pytest.param("n == 16 or rank", True, id="either, one true"),
        pytest.param("n == 8 or rank", None, id="either, one not known"),
        pytest.param("n == 8 or s == 'y'", False, id="either, both false"),
        pytest.param("n / epoch == 1", None, id="divided by zero"),
    ],
)
def test_a_condition_is_settled_if_nothing_can_change_it(test, is_true):
    condition = ast.parse(test, mode="eval").body
    assert settled(condition, frozenset({"i"}), NAMES, {"n", "i", "epoch"}.__contains__) is is_true


@pytest.mark.parametrize(
    ("body", "call", "rounds"),
    [
        pytest.param("return i % 10 == 0", "f(i)", 8, id="returned"),
        pytest.param("'Doc.'\n    late = i > 20\n    return late and i % 2 == 1", "f(i)", 19, id="a name"),
        pytest.param("if i < 30: return False\n    return True", "f(i)", 28, id="a condition"),
        pytest.param(
            "if i < 9:\n        x = 0\n    elif i < 20: x = 1\n    else: x = 5\n    return x == 5",
            "f(i)",
            18,
            id="branches",
        ),
        pytest.param(
            "for end, on in ((9, False), (12, True)):\n        if i < end: return on\n    return False",
            "f(i)",
            7,
            id="a loop",
        ),
        pytest.param("return i % every == 0", "f(i)", 10, id="a default"),
        pytest.param("return i % every == 0", "f(i, every=9)", 7, id="a keyword"),
        pytest.param("return g(i) and i > 5", "f(i)", 5, id="a function that it calls"),
        pytest.param("return i == n", "f(i)", 14, id="a global number"),
        pytest.param("while i < 30: i += 1\n    return True", "f(i)", None, id="a loop that counts"),
        pytest.param("print(i)\n    return i == 9", "f(i)", None, id="another statement"),
        pytest.param("if i > n: return True", "f(i)", None, id="no value"),
        pytest.param("return every % 10 == 0", "f(*[], i)", None, id="a star"),
        pytest.param(
            "for end, on in ENDS.items():\n        if i < end: return on\n    return False", "f(i)", 7, id="a dict"
        ),
        pytest.param(
            "for end, on in ENDS.items():\n        if i < end: break\n    return on",
            "f(i)",
            None,
            id="a loop that ends",
        ),
        pytest.param(
            "x = 0\n" + "    if i > 1: x = x + 1\n" * 12 + "    return x == 12 and i > 9", "f(i)", None, id="many ways"
        ),
    ],
)
def test_what_a_function_returns_is_read(tmp_path, body, call, rounds):
    path = tmp_path / "schedule.py"
    path.write_text(
        f"n, ENDS = 16, {{9: False, 12: True}}\ndef g(j): return j % 7 == 0\ndef f(i, every=4 * 3):\n    {body}\n"
    )
    names = runpy.run_path(str(path)) | {"i": 2}
    loop = ast.parse("for i in range(99): pass").body[0]
    test = ast.parse(call, mode="eval").body
    assert when_true(test, Counters.of(loop, names), names, first=1) == rounds


def test_a_method_sees_what_the_loop_counts(tmp_path):
    path = tmp_path / "trainer.py"
    path.write_text("class T:\n    step = 0\n    def due(self, every): return self.step % every == 0\n")
    trainer = runpy.run_path(str(path))["T"]()
    trainer.step = 3
    loop = ast.parse("while True: self.step += 1").body[0]
    names = {"self": trainer}
    test = ast.parse("self.due(10)", mode="eval").body
    assert when_true(test, Counters.of(loop, names), names, first=1) == 7


def test_a_function_has_its_own_numbers(tmp_path):
    path = tmp_path / "schedule.py"
    path.write_text("n = 16\ndef f(): return n % 10 == 0\n")
    names = {"f": runpy.run_path(str(path))["f"], "n": 2}
    loop = ast.parse("for n in range(99): pass").body[0]
    assert when_true(ast.parse("f()", mode="eval").body, Counters.of(loop, names), names, first=1) is None
