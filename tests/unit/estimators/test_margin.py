"""The margin is a quantile of the estimator's errors, by family."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from importlib import resources

import pytest

from cotenant.core.errors import UsageError
from cotenant.core.trace import LibraryCall
from cotenant.core.units import MiB
from cotenant.estimators import margin as module
from cotenant.estimators.margin import (
    FAMILIES,
    above_bytes,
    check_coverage,
    family_of,
    margin_of,
    quantile,
    scale_bytes,
    score_of,
)
from cotenant.estimators.replay_input import make_replay_input, software_stack
from cotenant.estimators.traced import TracedEstimator
from cotenant.gpu_specs import gpu_spec
from traces import a_trace, alloc, call

A100 = gpu_spec("A100-40GB")
DENSE, KNOWN, GUESSED = FAMILIES


def conv(x=(64, 64, 56, 56), w=(64, 64, 3, 3), y=(64, 64, 56, 56), kind="conv_forward", **changes):
    params = {
        "x": x,
        "w": w,
        "y": y,
        "stride": (1, 1),
        "padding": (1, 1),
        "dilation": (1, 1),
        "groups": 1,
        "dtype": "float32",
        "channels_last": False,
        **changes,
    }
    return LibraryCall(kind=kind, thread="main", params=params)


def with_ops(*ops):
    return a_trace([alloc(0, 100), *(call(i) for i in range(len(ops)))], ops)


@pytest.fixture
def scores(monkeypatch):
    """Ninety-nine scores of 0.01 to 0.99 for every family."""
    scores_by_family = {name: tuple(i / 100 for i in range(1, 100)) for name in FAMILIES}
    monkeypatch.setattr(module, "calibration", lambda: scores_by_family)


@pytest.mark.parametrize(
    ("ops", "gpu", "family"),
    [
        pytest.param([], "A100-40GB", DENSE, id="no library call"),
        pytest.param([LibraryCall(kind="gemm", thread="main")], "A100-40GB", DENSE, id="matrices only"),
        pytest.param([conv(groups=64, w=(64, 1, 3, 3))], "A100-40GB", DENSE, id="depthwise: no cuDNN"),
        pytest.param([conv()], "A100-40GB", KNOWN, id="of ResNet, looked up"),
        pytest.param([conv(), conv(padding=(9, 9))], "A100-40GB", GUESSED, id="one is in no table"),
        pytest.param([conv()], "RTX3060-12GB", KNOWN, id="also for 8.6"),
        pytest.param([conv()], "V100-16GB", GUESSED, id="the table is of another cuDNN"),
        pytest.param(
            [conv(groups=2, w=(64, 32, 3, 3), padding=(9, 9))], "A100-40GB", GUESSED, id="grouped and in no table"
        ),
        pytest.param([conv(padding=(9, 9), w=(64, 3, 3, 3))], "A100-40GB", KNOWN, id="a first layer"),
        pytest.param([conv(dtype="float64")], "A100-40GB", KNOWN, id="no tensor cores, no workspace"),
        pytest.param([conv(dtype="bfloat16")], "A100-40GB", GUESSED, id="halves in the usual layout"),
        pytest.param([conv(dtype="bfloat16", channels_last=True)], "A100-40GB", KNOWN, id="halves as cores take them"),
        pytest.param([conv(benchmark=True)], "A100-40GB", GUESSED, id="whatever was fastest"),
    ],
)
def test_the_family_follows_from_the_convolutions(ops, gpu, family):
    assert family_of(with_ops(*ops), gpu_spec(gpu)) == family


@pytest.mark.parametrize(
    ("coverage", "score", "reached"),
    [
        pytest.param(0.5, 0.5, 0.5, id="50 of 99 and one more"),
        pytest.param(0.95, 0.95, 0.95, id="95 of 99"),
        pytest.param(0.951, 0.96, 0.951, id="rounded up"),
        pytest.param(0.985, 0.99, 0.985, id="the largest, and less than it covers"),
        pytest.param(0.99, 0.99, 0.99, id="all of 99"),
        pytest.param(0.995, 0.99, 0.99, id="more than 99 rows can tell"),
    ],
)
def test_the_quantile_and_the_coverage_it_reaches(coverage, score, reached):
    assert quantile([i / 100 for i in range(1, 100)], coverage) == (score, reached)


def test_a_quantile_covers_another_draw_with_its_probability():
    chance = random.Random(4)
    covered = 0
    for _ in range(4000):
        drawn = [chance.gauss(0, 1) for _ in range(20)]
        covered += drawn[-1] <= quantile(sorted(drawn[:-1]), 0.9)[0]
    assert 0.88 < covered / 4000 < 0.92


def test_the_margin_is_the_spread_plus_the_quantile(scores):
    trace = with_ops()
    free = make_replay_input(trace, A100, software_stack(trace.header)).replay()
    context = A100.context.high_bytes - A100.context.typical_bytes
    scale = scale_bytes(DENSE, free.peak_reserved_bytes, free.peak_allocated_bytes, 0)
    found = margin_of(trace, A100, free, 40 * MiB, 0.9)
    assert found.bytes == round(0.9 * scale + 40 * MiB) + context
    assert (found.coverage, found.family, found.rows, found.warnings) == (0.9, DENSE, 99, ())


@pytest.mark.parametrize("ops", [pytest.param([], id="dense"), pytest.param([conv()], id="convolutions")])
def test_the_default_coverage_is_that_of_all_families(ops, scores):
    trace = with_ops(*ops)
    free = make_replay_input(trace, A100, software_stack(trace.header)).replay()
    assert margin_of(trace, A100, free, 0).coverage == module.COVERAGE == 0.99


def test_answers_of_another_cudnn_are_guesses():
    trace = with_ops(conv())
    v100 = gpu_spec("V100-16GB")
    assert family_of(trace, v100, torch_version="2.6.0") == KNOWN
    assert family_of(trace, v100, torch_version="2.13.0") == family_of(trace, v100) == GUESSED
    free = make_replay_input(trace, v100, software_stack(trace.header)).replay()
    assert margin_of(trace, v100, free, 0, torch_version="2.6.0").family == KNOWN


def test_too_few_rows_add_a_warning(scores):
    trace = with_ops()
    free = make_replay_input(trace, A100, software_stack(trace.header)).replay()
    found = margin_of(trace, A100, free, 0, 0.999)
    assert found.coverage == 0.99
    assert "99.0% of jobs, not 99.9%: only 99 like it were measured" in found.warnings[0]


@pytest.mark.parametrize(
    ("compiled_scores", "expected", "coverage"),
    [
        pytest.param((-0.1, 0.5), lambda reserved, dense: round(0.5 * reserved + 40 * MiB), 2 / 3, id="wider"),
        pytest.param((-0.2, -0.1), lambda reserved, dense: dense, 2 / 3, id="narrower than that of the family"),
    ],
)
def test_compiled_code_has_the_wider_of_two_margins(scores, monkeypatch, compiled_scores, expected, coverage):
    monkeypatch.setattr(module, "compiled_calibration", lambda: compiled_scores)
    trace = with_ops()
    compiled = replace(trace, header=replace(trace.header, compiled=True))
    free = make_replay_input(trace, A100, software_stack(trace.header)).replay()
    context = A100.context.high_bytes - A100.context.typical_bytes
    dense, found = margin_of(trace, A100, free, 40 * MiB, 0.9), margin_of(compiled, A100, free, 40 * MiB, 0.9)
    assert found.bytes == context + expected(free.peak_reserved_bytes, dense.bytes - context)
    assert found.coverage == coverage
    assert "66.7% of jobs, not 90.0%: only 2 like it were measured (family: compiled code)" in found.warnings[0]
    assert dense.warnings == ()


def test_a_negative_quantile_gives_no_negative_margin(monkeypatch):
    monkeypatch.setattr(module, "calibration", lambda: dict.fromkeys(FAMILIES, (-0.5, -0.4)))
    trace = with_ops()
    free = make_replay_input(trace, A100, software_stack(trace.header)).replay()
    context = A100.context.high_bytes - A100.context.typical_bytes
    assert margin_of(trace, A100, free, 0, 0.5).bytes == context


def test_the_scale_depends_on_the_uncertain_bytes():
    assert scale_bytes(DENSE, 1000 * MiB, 900 * MiB, 50 * MiB) == 116 * MiB
    assert scale_bytes(KNOWN, 1000 * MiB, 900 * MiB, 50 * MiB) == 3048 * MiB
    assert scale_bytes(GUESSED, 1000 * MiB, 900 * MiB, 0) == 2024 * MiB
    assert scale_bytes(GUESSED, 1000 * MiB, 900 * MiB, 50 * MiB) == 2224 * MiB


@pytest.mark.parametrize(
    ("family", "score", "above"),
    [
        pytest.param(KNOWN, 0.2, 50, id="on top of the interval"),
        pytest.param(KNOWN, -0.2, 10, id="or less"),
        pytest.param(GUESSED, 0.2, 30, id="within the interval"),
        pytest.param(GUESSED, 0.4, 40, id="beyond it"),
        pytest.param(GUESSED, 0.0, 30, id="nothing is below the interval"),
    ],
)
def test_a_score_scales_to_bytes(family, score, above):
    assert above_bytes(family, score, 30, 100) == above


@pytest.mark.parametrize("family", FAMILIES)
def test_a_score_is_the_smallest_that_covers_its_row(family):
    for found in (-20, 0, 30, 31, 90):
        score = score_of(family, found, 30, 100)
        assert above_bytes(family, score, 30, 100) >= found
        if score:
            assert above_bytes(family, score - 0.01, 30, 100) < found


def test_a_suspected_call_widens_the_margin_and_its_absence_does_not(scores):
    trace = with_ops(conv(padding=(9, 9)))
    free = make_replay_input(trace, A100, software_stack(trace.header)).replay()
    context = A100.context.high_bytes - A100.context.typical_bytes
    usual, suspected = (margin_of(trace, A100, free, 0, 0.9, split_bytes=nbytes).bytes for nbytes in (0, 100 * MiB))
    assert usual == round(0.9 * scale_bytes(GUESSED, free.peak_reserved_bytes, 0, 0)) + context
    assert suspected - usual == round(0.9 * 4 * 100 * MiB)


@pytest.mark.parametrize("coverage", [0, 1, 1.5, -0.1])
def test_a_coverage_outside_0_to_1_is_refused(coverage):
    with pytest.raises(UsageError, match="must be between 0 and 1"):
        check_coverage(coverage)
    with pytest.raises(UsageError):
        TracedEstimator(coverage=coverage)


def test_the_default_coverages_are_valid():
    check_coverage(None)
    check_coverage(0.5)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_shipped_scores_are_sorted_and_complete(family):
    scores = module.calibration()[family]
    assert list(scores) == sorted(scores)
    assert len(scores) >= 99
    shipped = json.loads((resources.files("cotenant.estimators") / "data" / "margins.json").read_text(encoding="utf-8"))
    assert scores[-1] == shipped["families"][family]["scores"][-1] / 10_000


def test_the_shipped_scores_of_compiled_jobs_are_sorted():
    scores = module.compiled_calibration()
    assert list(scores) == sorted(scores)
    assert -0.5 < scores[0] < scores[-1] < 1


def test_more_coverage_never_gives_a_lower_bound():
    trace = with_ops(conv())
    bounds = [
        TracedEstimator(coverage=coverage).on(trace, A100).estimate.bound_bytes for coverage in (0.5, 0.9, 0.95, 0.99)
    ]
    assert bounds == sorted(bounds)
    assert bounds[0] < bounds[-1]
