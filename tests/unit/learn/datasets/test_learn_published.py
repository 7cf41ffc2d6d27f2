"""Readers of the published datasets."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from cotenant.core.errors import DatasetError
from cotenant.core.units import MiB
from cotenant.learn.datasets.published import is_plain, read_published
from shared_data import SHARED_DATA

SETS = SHARED_DATA / "gpumemnet"

MLP_HEAD = (
    "dataset,row_in_source,input_size,output_size,architecture,hidden_widths,activation,use_batchnorm,use_dropout,"
    "batch,params,measured_mib,avg_gputl_pct,avg_gract,avg_smact,avg_smocc,avg_fp32a,last_batch,flag\n"
)
MLP = "mlp_step2,7,100,10,pyramid,50-20,prelu,1,1,32,6420,1451,25.5,0.2,0.1,0.05,0.03,64,\n"
CNN_HEAD = (
    "row_in_source,input_channels,num_classes,architecture,base_filters,batch,image_size,activation,params,status,"
    "measured_mib,avg_gputl_pct,avg_gract,avg_smact,avg_smocc,avg_fp32a,flag,layers\n"
)


def table(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "set.csv"
    path.write_text(text)
    return path


def test_mlp_row_is_rebuilt_layer_by_layer(tmp_path):
    (row,) = read_published(table(tmp_path, MLP_HEAD + MLP))
    kinds = [layer.kind for layer in row.layers]
    assert kinds == [*["linear", "batchnorm", "activation", "dropout"] * 2, "linear", "softmax"]
    assert [layer.parameters for layer in row.layers if layer.kind == "linear"] == [5050, 1020, 210]
    assert (row.status, row.peak_bytes, row.batch, row.smact, row.group) == ("ok", 1451 * MiB, 32, 0.1, "pyramid")
    assert row.extras["last_batch"] == 64


def test_a_crashed_row_has_its_last_reading_and_no_peak(tmp_path):
    text = MLP_HEAD + MLP.replace("64,\n", "64,crashed_before_first_step\n")
    (row,) = read_published(table(tmp_path, text))
    assert (row.status, row.peak_bytes, row.extras["read_mib"]) == ("crash", None, 1451)


@pytest.mark.parametrize(
    ("architecture", "layers", "params", "counts"),
    [
        pytest.param(
            "uniform",
            "conv3x3:8x16;bn;act;conv3x3:4x16;act;gap:4x1;linear:2x1;softmax",
            542,
            [224, 292, 10],
            id="plain",
        ),
        pytest.param(
            "residual",
            "conv1x1:8x16;conv3x3:8x16;act;conv3x3:8x16;act;gap:8x1;linear:2x1;softmax",
            858,
            [32, 224, 584, 18],
            id="shortcut and first convolution begin at the same input",
        ),
        pytest.param(
            "dense",
            "conv3x3:32x16;act;conv3x3:32x16;act;conv1x1:33x16;act;gap:33x1;linear:2x1;softmax",
            896 + 32 * (35 * 9 + 1) + 33 * 68 + 68,
            [896, 32 * (35 * 9 + 1), 33 * 68, 68],
            id="each convolution sees all before it",
        ),
    ],
)
def test_inputs_of_convolutions_follow_the_architecture(tmp_path, architecture, layers, params, counts):
    line = f"1,3,2,{architecture},8,4,16,relu,{params},ok,2000,,,,,,,{layers}\n"
    (row,) = read_published(table(tmp_path, CNN_HEAD + line))
    assert [layer.parameters for layer in row.layers if layer.kind in ("conv", "linear")] == counts
    assert is_plain(row) == (architecture == "uniform")


def test_parameters_that_do_not_add_up_fail_with_their_line(tmp_path):
    with pytest.raises(DatasetError, match=r"set.csv:2: 6420 parameters in the layers, but `params` is 6421") as caught:
        read_published(table(tmp_path, MLP_HEAD + MLP.replace("6420", "6421").replace("prelu", "relu")))
    assert "6421" in caught.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(MLP_HEAD + MLP + MLP, "has `mlp_step2-7` twice", id="duplicate"),
        pytest.param("a,b\n1,2\n", "is no known table of GPUMemNet", id="another table"),
        pytest.param("", "is no known table of GPUMemNet", id="empty"),
        pytest.param(MLP_HEAD + MLP.replace(",32,", ",many,"), "set.csv:2: invalid literal", id="no number"),
        pytest.param(MLP_HEAD + MLP.partition(",")[0] + "\n", "set.csv:2: ", id="a line that was cut"),
    ],
)
def test_an_invalid_set_is_refused(tmp_path, text, message):
    with pytest.raises(DatasetError, match=message):
        read_published(table(tmp_path, text))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(DatasetError, match="cannot read"):
        read_published(tmp_path / "nope.csv")


@pytest.mark.parametrize(
    ("name", "statuses"),
    [
        pytest.param("mlp.csv", {"ok": 5947, "crash": 53}, id="mlp"),
        pytest.param("cnn_step1.csv", {"ok": 1592, "oom": 384, "crash": 85}, id="cnn"),
        pytest.param("cnn_step23_sample.csv", {"ok": 15, "oom": 4}, id="cnn sample"),
        pytest.param("transformer_sample.csv", {"ok": 96, "oom": 5}, id="transformer sample"),
    ],
)
def test_the_published_sets_are_read(name, statuses):
    if not (SETS / name).is_file():
        pytest.skip("the published sets are not here")
    assert Counter(row.status for row in read_published(SETS / name)) == statuses
