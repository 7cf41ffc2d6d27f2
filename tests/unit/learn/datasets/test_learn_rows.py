"""Rows of a dataset are validated."""

from __future__ import annotations

import dataclasses

import pytest

from cotenant.core.errors import DatasetError
from cotenant.core.units import MiB
from cotenant.learn.datasets.dataset_row import DatasetRow, Layer, check

ROW = DatasetRow(
    family="mlp",
    config_id="mlp-1",
    status="ok",
    source="measured",
    batch=8,
    layers=(
        Layer(kind="linear", output_shape=(16,), parameters=80),
        Layer(kind="attention", output_shape=(), parameters=5),
        Layer(kind="conv", output_shape=(3, 4, 4), parameters=10),
    ),
    group="uniform",
    peak_bytes=700 * MiB,
    capacity_bytes=800 * MiB,
    smact=0.5,
)


def test_sums_over_layers_skip_unknown_shapes():
    assert (ROW.parameters, ROW.activations) == (95, 16 + 48)
    assert [layer.outputs for layer in ROW.layers] == [16, 0, 48]


def test_a_valid_row_passes():
    assert check(ROW) is ROW
    failed = dataclasses.replace(ROW, status="oom", peak_bytes=None)
    assert check(failed) is failed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"config_id": ""}, "has no id", id="no id"),
        pytest.param({"family": "gnn"}, "family is `gnn`, wanted one of mlp, cnn, transformer", id="family"),
        pytest.param({"status": "fine"}, "status is `fine`", id="status"),
        pytest.param({"source": "guessed"}, "source is `guessed`", id="source"),
        pytest.param({"batch": 0}, "batch is 0", id="batch"),
        pytest.param({"peak_bytes": None}, "is ok, but its peak is None bytes", id="no peak"),
        pytest.param({"peak_bytes": 0}, "is ok, but its peak is 0 bytes", id="peak of nothing"),
        pytest.param({"peak_bytes": 801 * MiB}, "is above the GPU's", id="more than the GPU has"),
        pytest.param({"smact": 1.01}, "smact is 1.01, wanted a ratio", id="percent"),
        pytest.param({"drama": -0.1}, "drama is -0.1, wanted a ratio", id="below zero"),
        pytest.param({"layers": (Layer(kind="linear", output_shape=(-1,), parameters=0),)}, "layer 0", id="extent"),
        pytest.param({"layers": (Layer(kind="linear", output_shape=(1,), parameters=-1),)}, "layer 0", id="count"),
        pytest.param({"layers": (Layer(kind="Linear", output_shape=(1,), parameters=1),)}, "layer 0", id="kind"),
    ],
)
def test_an_invalid_row_is_refused(change, message):
    with pytest.raises(DatasetError, match=r"row `.*`: ") as error:
        check(dataclasses.replace(ROW, **change))
    assert message in error.value.message


def test_a_traced_peak_may_exceed_the_gpu():
    check(dataclasses.replace(ROW, source="traced", peak_bytes=900 * MiB))
    check(dataclasses.replace(ROW, source="published:gpumemnet"))
