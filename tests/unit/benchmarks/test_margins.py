"""What the margin is made of: scores, folds, and the commands that make them again."""

from __future__ import annotations

import argparse
import importlib
import json
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cotenant.estimators.margin import FAMILIES, scale_bytes, score_of
from cotenant.gpu_specs import gpu_spec

ROOT = Path(__file__).parents[3]
A100 = gpu_spec("A100-40GB")
MIB = 2**20


@pytest.fixture(scope="module")
def load():
    sys.path.insert(0, str(ROOT))
    try:
        yield lambda name: importlib.import_module(f"benchmarks.estimator.{name}")
    finally:
        sys.path.remove(str(ROOT))


@pytest.fixture
def margins(load):
    return load("margins")


def replayed(load, *, measured, reserved, spread=0, allocated=0, doubt="", problem=None, retried=False):
    row = load("ground_truth_rows").Row(
        title="job",
        script="x.py",
        args=(),
        gpu="A100-40GB",
        torch="2.4.1",
        measured_bytes=measured * MIB,
        doubt=doubt,
    )
    return load("ground_truth_scores").Result(
        row=row,
        problem=problem,
        retried=retried,
        family=FAMILIES[0],
        reserved_bytes=reserved * MIB,
        unlimited_bytes=reserved * MIB,
        allocated_bytes=allocated * MIB,
        spread_bytes=spread * MIB,
    )


def scored(margins, score, family=FAMILIES[0], group="mlp", title="job"):
    return margins.Scored(
        group=group,
        title=title,
        family=family,
        reserved_bytes=900 * MIB,
        above_bytes=round(score * 100 * MIB),
        spread_bytes=0,
        split_bytes=0,
        scale_bytes=100 * MIB,
        device_bytes=1000 * MIB,
    )


def test_scores_count_from_the_upper_end_of_the_interval(load, margins):
    found = [
        replayed(load, measured=600, reserved=100),  # fits the constant
        replayed(load, measured=750, reserved=200, spread=20, allocated=116),
        replayed(load, measured=9000, reserved=200, doubt="copied"),
        replayed(load, measured=9000, reserved=200, problem="raised"),
        replayed(load, measured=9000, reserved=200, retried=True),
    ]
    (only,) = margins.score_set("mlp", found, 1)
    assert only.above_bytes == (750 - 500 - 200) * MIB
    assert only.score == pytest.approx(0.3)


def test_a_page_has_the_bound_of_the_scores_of_its_run(load, margins):
    rows = [scored(margins, i / 100, title=f"job {i}") for i in range(1, 100)]
    result = replayed(load, measured=9000, reserved=1000, allocated=900, spread=40)
    context = A100.context.high_bytes - A100.context.typical_bytes
    # 99 scores reach 99 %: the largest, 0.99, of 1000 - 900 + 16 MiB, beside the interval.
    assert margins.with_margin(result, rows).margin_bytes == round((0.99 * 116 + 40) * MIB) + context
    larger = replace(result, spread_bytes=100_000 * MIB)
    assert margins.with_margin(larger, rows).margin_bytes == A100.usable_bytes - 1000 * MIB - A100.context.typical_bytes
    assert margins.with_margin(replace(larger, oom=True), rows).margin_bytes > 100_000 * MIB
    assert margins.with_margin(replace(result, problem="raised"), rows).margin_bytes == 0


def test_a_row_is_judged_by_other_networks(margins):
    # One network far above: where it is in the quantile's rows it sets the margin, for itself it is missed.
    rows = [scored(margins, 0.1, title=f"job {i}") for i in range(9)]
    rows += [scored(margins, 5.0, title="job far above") for _ in range(2)]
    results = margins.held_out(rows, 0.9)
    assert len(results) == 11
    assert sum(not covered for _, covered, _ in results) == 2
    assert sorted({round(margin, 3) for _, _, margin in results}) == [0.01, 0.5]


def test_held_out_rows_are_covered_as_often_as_requested(margins):
    chance = random.Random(1)
    rows = [scored(margins, chance.gauss(0, 1), title=f"job {i}") for i in range(1000)]
    results = margins.held_out(rows, 0.9)
    assert 0.88 < sum(covered for _, covered, _ in results) / len(results) < 0.92


@pytest.mark.parametrize(
    ("group", "title", "network"),
    [
        ("timm", "resnetv2_50x1_bit 32", "timm resnetv"),
        ("timm", "tf_efficientnet_b0 8", "timm efficientnet"),
        ("timm", "maxvit_base_tf_384 8", "timm maxvit"),
        ("xmem", "MnasNet SGD 323 on RTX3060-12GB", "xmem MnasNet"),
        ("mlp", "mlp_step2 629", "mlp mlp_step2 629"),
    ],
)
def test_variants_of_a_network_are_one_family(margins, group, title, network):
    assert scored(margins, 0.1, group=group, title=title).network == network


def test_width_is_split_into_interval_and_quantile(margins):
    rows = [scored(margins, i / 1000, title=f"job {i}") for i in range(99)]
    assert margins.width_lines(rows)[-1] == f"| {FAMILIES[0]} | 99 | 99 | 0.098 | 0.0% | 1.0% | 1.0% |"


def test_report_counts_each_set_and_each_family(margins):
    rows = [
        row
        for i in range(10)
        for row in (
            scored(margins, 0.1, title=f"job {i}"),
            scored(margins, 0.2, FAMILIES[2], "cnn", title=f"network {i}"),
        )
    ]
    lines = margins.report_lines(rows, margins.Counter({"ran out of memory": 2}))
    assert lines[0] == "Left out: 2 rows: ran out of memory."
    assert any(line.startswith(f"| {FAMILIES[2]} | 10 |") for line in lines)
    assert any(line.startswith("| mlp | 10 |") for line in lines)
    assert any(line.startswith("| all | 20 |") for line in lines)


def test_the_only_row_of_a_family_is_judged_by_none(margins):
    rows = [scored(margins, 0.1, title=f"job {i}") for i in range(10)] + [scored(margins, 5.0, FAMILIES[2], "cnn")]
    lines = margins.report_lines(rows, margins.Counter())
    assert any(line.startswith("| all | 10 |") for line in lines)
    width = next(i for i, line in enumerate(lines) if line.startswith("What the mean margin"))
    assert not any(line.startswith(f"| {FAMILIES[2]} |") for line in lines[:width])


def test_shipped_scores_name_their_rows(margins):
    content = margins.shipped([scored(margins, 0.2), scored(margins, -0.1), scored(margins, 0.5, FAMILIES[1], "timm")])
    assert content["families"][FAMILIES[0]] == {"rows": {"mlp": 2}, "scores": [-1000, 2000]}
    assert content["families"][FAMILIES[1]]["rows"] == {"timm": 1}


def a_network(scales, chance):
    """One of three that may need what its split call adds; the others need nothing above their estimate."""
    suspected = chance.random() < 1 / 3
    split = 1000 * MIB if suspected else 0
    above = split if suspected and chance.random() < 1 / 3 else 0
    return scales.Network(
        network=str(chance.random()),
        reserved_bytes=1000 * MIB,
        spread_bytes=10 * MIB,
        split_bytes=split,
        above_bytes=above,
        device_bytes=1500 * MIB,
    )


def test_a_way_that_counts_split_calls_is_chosen_where_they_matter(load):
    scales, chance = load("margin_scales"), random.Random(2)
    rows = [a_network(scales, chance) for _ in range(300)]
    shipped = scales.SHIPPED[scales.GUESSED]
    assert scales.chosen(scales.WAYS[scales.GUESSED], rows, 0.95).split_weight == 16
    costs = {}
    for way in (scales.BEFORE, shipped):
        results = scales.by_way(way, rows, 0.95)
        assert sum(above for above, _ in results) <= 0.06 * len(rows)
        costs[way] = sum(margin for _, margin in results)
    assert costs[shipped] < costs[scales.BEFORE] / 1.5


def test_a_constant_is_chosen_where_errors_do_not_grow_with_the_network(load):
    scales, chance = load("margin_scales"), random.Random(2)
    above = (round(chance.uniform(0, 300) * MIB) for _ in range(300))
    rows = [
        replace(a_network(scales, chance), reserved_bytes=round(1000 * chance.random() ** 2) * MIB, above_bytes=size)
        for size in above
    ]
    assert scales.chosen(scales.WAYS[scales.KNOWN], rows, 0.98).constant_mib >= 1024


def test_table_of_scales_has_a_row_per_way(load):
    scales, chance = load("margin_scales"), random.Random(2)
    lines = scales.scale_lines(scales.GUESSED, [a_network(scales, chance) for _ in range(40)])
    assert lines[1] == "Guessed convolutions, 40 rows, by scale of the errors:"
    assert lines[5].startswith("| reserved + 128 MiB, on top of the interval | ")
    assert lines[7].startswith("| reserved + 1024 MiB + 4 x split, or the interval | ")
    assert len(lines) == 5 + 1 + len(scales.WAYS[scales.GUESSED]) + 1
    lines = scales.scale_lines(scales.KNOWN, [a_network(scales, chance) for _ in range(40)])
    assert lines[6].startswith("| reserved + 2048 MiB, on top of the interval | ")
    assert len(lines) == 5 + len(scales.WAYS[scales.KNOWN]) + 1
    assert scales.scale_lines(scales.KNOWN, [a_network(scales, chance)]) == []


@pytest.mark.parametrize("family", FAMILIES[1:])
def test_the_shipped_way_is_the_packages(load, family):
    scales = load("margin_scales")
    row = a_network(scales, random.Random(0))
    scale = scale_bytes(family, row.reserved_bytes, 0, row.split_bytes)
    assert scales.SHIPPED[family].scale_bytes(row) == scale
    assert scales.SHIPPED[family].score(row) == score_of(family, row.above_bytes, row.spread_bytes, scale)


@pytest.mark.parametrize(
    ("pythonpath", "quick", "has_margins", "has_mlp"),
    [("", False, False, True), ("folder", False, True, False), ("", True, True, True)],
)
def test_one_command_runs_all_that_can_be_run(load, tmp_path, pythonpath, quick, has_margins, has_mlp):
    args = argparse.Namespace(traces=None, pythonpath=pythonpath, quick=quick)
    programs = dict(load("all_estimates").commands(args, tmp_path))
    assert ("margins" in programs, "mlp" in programs, "peft" in programs) == (has_margins, has_mlp, True)
    assert "--ship" not in [word for rest in programs.values() for word in rest] or not quick
    assert {program[0] for program in programs.values()} <= {
        path.stem for path in (ROOT / "benchmarks" / "estimator").glob("*.py")
    }


def test_pictures_show_measured_estimated_and_bound(load, tmp_path):
    pytest.importorskip("matplotlib")
    plots = load("error_plots")
    row = {"problem": None, "measured_oom": False, "measured_bytes": 3 << 30, "reserved_bytes": 1 << 30}
    row |= {"outside_bytes": 1 << 30, "margin_bytes": 1 << 29, "family": FAMILIES[0]}
    bad = [{**row, "problem": "raised"}, {**row, "measured_oom": True}]
    (tmp_path / "mlp.jsonl").write_text("\n".join(json.dumps(record) for record in [row, *bad]))
    rows = plots.read_dump(tmp_path / "mlp.jsonl")
    assert plots.points(rows) == {FAMILIES[0]: [(3.0, 2.0, 2.5)]}
    plots.draw(tmp_path / "mlp.svg", "mlp", rows)
    assert (tmp_path / "mlp.svg").read_text().startswith("<?xml")
