"""Upstream's own files are read like the cleaned ones."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from pathlib import Path

import pytest

from cotenant.core.errors import DatasetError
from cotenant.core.units import MiB
from cotenant.learn.datasets.published import is_published, read_published
from cotenant.learn.datasets.upstream_files import convolution_of
from shared_data import SHARED_DATA

SETS = SHARED_DATA / "gpumemnet"
MLP = {
    "Filename": "input:60_output:7_depth:1_arch:pyramid_batch:300"
    "_act:leaky_relu_dropout:0.33_dropout:True_batchnorm:True.out",
    "Activations-Params": "[('linear', 30, 1830), ('batch_normalization', 30, 60), ('LeakyReLU', 30, 0), "
    "('dropout', 30, 0), ('linear', 7, 217), ('Softmax', 7, 0)]",
    "Total Parameters": "2107",
    "Max GPU Memory (MiB)": "1447",
    "Avg SMACT": "0.25",
    "Avg GPUTL": "-1",
}
RESIDUAL = {
    "Filename": "input_channels:3_num_classes:5_depth:3_arch:residual_base_filters:4_batch:42_input_size:8_act:selu"
    "_dropout:0.39_dropout:False_batchnorm:False.out",
    "Activations-Params": "[('conv2d', 256, 16), ('conv2d', 256, 112), ('SELU', 256, 0), ('conv2d', 256, 148), "
    "('SELU', 256, 0), ('adaptive_avg_pool2d', 4, 0), ('linear', 5, 25), ('softmax', 5, 0)]",
    "Total Parameters": "301",
    "Max GPU Memory (MiB)": "2329",
    "Status": "SUCCESSFUL",
}


def write(folder: Path, *rows: dict[str, str]) -> Path:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    path = folder / "mlp_data_step2.csv"
    path.write_text(text.getvalue(), encoding="utf-8")
    return path


def test_a_run_is_read_from_its_file_name_and_its_layers(tmp_path):
    path = write(tmp_path, MLP)
    assert is_published(path)
    (row,) = read_published(path)
    assert (row.family, row.batch, row.group, row.peak_bytes) == ("mlp", 300, "pyramid", 1447 * MiB)
    kinds = [layer.kind for layer in row.layers]
    assert kinds == ["linear", "batchnorm", "activation", "dropout", "linear", "softmax"]
    assert row.extras == {"input_shape": "60", "activation": "leaky_relu", "last_batch": 4096 % 300}
    assert row.smact == 0.25


def test_a_batch_of_one_sample_crashes_batch_normalization(tmp_path):
    (row,) = read_published(write(tmp_path, MLP | {"Filename": MLP["Filename"].replace("batch:300", "batch:819")}))
    assert (row.status, row.peak_bytes) == ("crash", None)
    assert row.extras["flag"] == "crashed_at_end_of_first_epoch"


def test_kernels_and_shortcuts_follow_from_the_counts(tmp_path):
    (row,) = read_published(write(tmp_path, RESIDUAL))
    convolutions = [(layer.name, layer.output_shape) for layer in row.layers if layer.kind == "conv"]
    assert convolutions == [("conv1x1", (4, 8, 8)), ("conv3x3", (4, 8, 8)), ("conv3x3", (4, 8, 8))]
    assert (row.status, row.peak_bytes) == ("ok", 2329 * MiB)


@pytest.mark.parametrize(
    ("change", "status", "flag"),
    [
        pytest.param({"Status": "OOM_CRASH"}, "oom", None, id="out of memory"),
        pytest.param({"Max GPU Memory (MiB)": "36000"}, "ok", "near_capacity", id="full"),
        pytest.param({"Activations-Params": "[]"}, "crash", "no_model_summary", id="no summary"),
    ],
)
def test_what_happened_to_a_cnn_is_recorded(tmp_path, change, status, flag):
    (row,) = read_published(write(tmp_path, RESIDUAL | change))
    assert (row.status, row.extras.get("flag")) == (status, flag)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"Filename": "input:60_output:7.out"}, "'arch'", id="no shape"),
        pytest.param({"Activations-Params": "[('linear', 30, 1830)] + 1"}, "wanted a list of", id="more than a list"),
        pytest.param({"Activations-Params": "__import__('os')"}, "wanted a list of", id="code"),
        pytest.param({"Total Parameters": "2108"}, "2107 parameters in the layers, but `params` is 2108", id="counts"),
        pytest.param({"Max GPU Memory (MiB)": "many"}, "invalid literal", id="no number"),
    ],
)
def test_a_row_that_cannot_be_read_is_refused_with_its_line(tmp_path, change, message):
    with pytest.raises(DatasetError) as error:
        read_published(write(tmp_path, MLP | change))
    assert f"{tmp_path / 'mlp_data_step2.csv'}:2: " in error.value.message
    assert message in error.value.message


def test_an_impossible_convolution_is_refused():
    with pytest.raises(ValueError, match="no convolution of 3 channels has 64 outputs and 29 parameters"):
        convolution_of(3, 64, 29)


@pytest.mark.skipif(not SETS.is_dir(), reason="the published sets are not beside the repository")
@pytest.mark.parametrize(
    ("cleaned", "upstream", "rows"),
    [
        ("mlp.csv", "mlp_data_step1.csv", 3000),
        ("mlp.csv", "mlp_data_step2.csv", 3000),
        ("cnn_step1.csv", "cnn_data_step1_partial_2061rows.csv", 2061),
    ],
)
def test_upstream_and_cleaned_files_have_the_same_rows(cleaned, upstream, rows):
    wanted = {row.config_id: rounded(row) for row in read_published(SETS / cleaned)}
    found = [rounded(row) for row in read_published(SETS / "raw" / upstream)]
    assert len(found) == rows
    assert [row for row in found if not same(row, wanted[row[0].config_id])] == []


def rounded(row):
    """The row without its measures, and these: the cleaned files have five digits of them."""
    measures = {name: value for name, value in row.extras.items() if isinstance(value, float)}
    extras = {name: value for name, value in row.extras.items() if name not in measures}
    measures |= {"smact": row.smact, "smocc": row.smocc}
    return dataclasses.replace(row, smact=None, smocc=None, extras=extras), measures


def same(found, wanted):
    return (
        found[0] == wanted[0]
        and found[1].keys() == wanted[1].keys()
        and all(
            value == wanted[1][name] or math.isclose(value, wanted[1][name], rel_tol=0, abs_tol=2e-5)
            for name, value in found[1].items()
        )
    )
