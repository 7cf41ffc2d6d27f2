"""Fits of measured pairs: what is left out is predicted, and what ships is what fitting gives."""

from __future__ import annotations

import math
import statistics

import pytest

pytest.importorskip("numpy", reason="fitting needs numpy")
pytest.importorskip("scipy", reason="fitting needs scipy")

from benchmarks._lib.interference_fitting import Hyper, PairSpeed, fit
from cotenant.sim.interference.kernel import TERMS, Traits
from cotenant.sim.interference.tables import fits, pair_rows, traits

SHIPPED = fits()["A100"]
HYPER = Hyper(SHIPPED.lengths, tuple(SHIPPED.weights[term] for term in TERMS), 0.0012)


def rows_of(family):
    found = []
    for first, second, speed_first, speed_second in pair_rows(family):
        found += [PairSpeed(first, second, speed_first), PairSpeed(second, first, speed_second)]
    return found


def relative_errors(fitted, rows, known):
    speeds = [fitted.speed(row.victim, known[row.victim], row.partner, known[row.partner]) for row in rows]
    return [abs(speed - min(1, row.speed)) / min(1, row.speed) for speed, row in zip(speeds, rows, strict=True)]


def test_pairs_left_out_on_the_a100():
    """Median at most 4 %, P90 at most 10 %: each sixth pair left out in turn."""
    rows, known = rows_of("A100"), traits("A100")
    pairs = sorted({tuple(sorted(row[:2])) for row in rows})
    found = []
    for fold in range(6):
        out = set(pairs[fold::6])
        training = [row for row in rows if tuple(sorted(row[:2])) not in out]
        fitted, _ = fit(training, known, smact_law=True, hyper=HYPER)
        found += relative_errors(fitted, [row for row in rows if tuple(sorted(row[:2])) in out], known)
    found.sort()
    assert statistics.median(found) < 0.04
    assert found[math.ceil(0.9 * len(found)) - 1] < 0.10


def test_what_ships_is_what_fitting_gives():
    rows, known = rows_of("A100"), traits("A100")
    again, _ = fit(rows, known, smact_law=True, hyper=HYPER)
    assert again.law == pytest.approx(SHIPPED.law)
    for victim, partner, _ in rows[::40]:
        args = (victim, known[victim], partner, known[partner])
        assert again.speed(*args) == pytest.approx(SHIPPED.speed(*args), abs=0.01)


LIGHT, HEAVY = Traits((0.1,), "light"), Traits((0.9,), "heavy")
KNOWN = {**{f"l{i}": LIGHT for i in range(4)}, **{f"h{i}": HEAVY for i in range(4)}}


def made_up():
    """Beside a heavy job everybody runs at 0.4, beside a light one at 0.95."""
    pairs = [(v, p) for v in KNOWN for p in KNOWN if v != p and {v, p} != {"l0", "h0"}]
    return [PairSpeed(v, p, 0.4 if p[0] == "h" else 0.95) for v, p in pairs]


def test_finds_who_suffers_and_who_causes_it():
    fitted, hyper = fit(made_up(), KNOWN, smact_law=False, iterations=30)
    assert fitted.speed("l0", LIGHT, "h0", HEAVY) == pytest.approx(0.4, abs=0.03)
    assert fitted.speed("h0", HEAVY, "l0", LIGHT) == pytest.approx(0.95, abs=0.03)
    assert fitted.speed(None, LIGHT, None, HEAVY) == pytest.approx(0.4, abs=0.03)
    assert len(hyper.lengths) == 2


def test_law_is_fitted():
    known = {f"j{i}": Traits((i / 10,), None) for i in range(1, 10)}
    rows = [PairSpeed(v, p, 1 / (1 + 1.5 * known[p].values[0] ** 3)) for v in known for p in known if v != p]
    fitted, _ = fit(rows, known, smact_law=True, hyper=Hyper((2.0, 2.0), (0.03, 0.03, 0.03, 0.002, 0.002), 0.001))
    assert fitted.law == pytest.approx((1.5, 3.0), rel=0.02)


def test_speeds_above_one_count_as_one():
    rows = [PairSpeed(v, p, 1.3) for v in KNOWN for p in KNOWN if v != p]
    fitted, _ = fit(rows, KNOWN, smact_law=False, iterations=5)
    assert fitted.mean == 1.0
