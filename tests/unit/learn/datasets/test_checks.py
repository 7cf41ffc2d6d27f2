"""Checks find the rows that would spoil a dataset, and no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cotenant.core.units import GiB
from cotenant.learn.datasets.checks import find_problems
from cotenant.learn.datasets.dataset_row import DatasetRow, Layer


def a_row(number=1, *, width=None, **changes):
    layer = Layer(kind="linear", output_shape=(width or number,), parameters=2 * (width or number))
    row = DatasetRow(
        family="mlp",
        config_id=f"mlp-{number}",
        status="ok",
        source="measured",
        batch=8,
        layers=(layer,),
        group="uniform",
        peak_bytes=GiB,
        capacity_bytes=40 * GiB,
        extras={"optimizer": "adam", "precision": "fp32", "dropout": 0},
    )
    return replace(row, **changes)


FINE = [a_row(number) for number in range(1, 6)]
FAILED = {"status": "oom", "peak_bytes": None}


@pytest.mark.parametrize(
    ("rows", "rules"),
    [
        pytest.param([], [], id="no rows"),
        pytest.param(FINE, [], id="fine"),
        pytest.param([*FINE, a_row(9, **FAILED)], [], id="a failure like the others"),
        pytest.param([*FINE, a_row(1)], ["duplicate"], id="twice"),
        pytest.param([*FINE, a_row(1, source="traced")], [], id="measured and traced"),
        pytest.param([*FINE, a_row(9, width=1)], ["twin"], id="the same job under another id"),
        pytest.param([*FINE, a_row(9, width=1, batch=9)], [], id="with another batch"),
        pytest.param(
            [*FINE, a_row(9, width=1, extras={"optimizer": "sgd", "precision": "fp32", "dropout": 0})],
            [],
            id="with another optimizer",
        ),
        pytest.param([*FINE, a_row(9, layers=(), **FAILED)], ["leak"] * 3, id="no layers where it failed"),
        pytest.param([*FINE, a_row(8, layers=()), a_row(9, layers=(), **FAILED)], [], id="no layers elsewhere, too"),
        pytest.param(
            [*FINE, a_row(9, extras={"optimizer": "adam", "precision": "fp32"}, **FAILED)], ["leak"], id="extra"
        ),
        pytest.param([a_row(9, layers=(), **FAILED)], [], id="all failed"),
        pytest.param([*FINE, a_row(9, peak_bytes=36 * GiB)], ["saturated"], id="at capacity"),
        pytest.param([*FINE, a_row(9, peak_bytes=36 * GiB - 1)], [], id="just below"),
        pytest.param([*FINE, a_row(9, peak_bytes=39 * GiB, source="traced")], [], id="a trace knows no capacity"),
        pytest.param([*FINE, a_row(9, peak_bytes=39 * GiB, capacity_bytes=None)], [], id="capacity not known"),
    ],
)
def test_each_rule_finds_its_rows(rows, rules):
    found = find_problems(rows)
    assert [problem.rule for problem in found] == rules


def test_a_problem_names_its_rows():
    (twin,) = find_problems([*FINE, a_row(9, width=3)])
    assert set(twin.config_ids) == {"mlp-3", "mlp-9"}
    assert twin.message == "1 jobs are there under more than one id (2 rows)"
    leaks = find_problems([*FINE, a_row(9, layers=(), **FAILED)])
    assert [leak.message.split("`")[1] for leak in leaks] == ["layers", "parameters", "activations"]
    assert leaks[0].config_ids == ("mlp-9",)
