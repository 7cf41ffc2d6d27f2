"""Printed model summaries are parsed into layers; broken ones are refused."""

from __future__ import annotations

import re
import textwrap

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cotenant.core.errors import SummaryError
from cotenant.estimators.layer_kinds import LAYER_KINDS, layer_kind
from cotenant.learn.datasets.dataset_row import Layer
from cotenant.learn.model_summaries.summary import parse_summary
from shared_data import SHARED_DATA

DATA = SHARED_DATA
PUBLISHED = sorted(DATA.glob("gpumemnet/summaries/[cg]*/*.txt")) + sorted(DATA.glob("carma/samples/model/*.model"))
LOGS = sorted(DATA.glob("gpumemnet/summaries/logs/*.txt"))

TABLE = """\
    some words before
    ----------------------------------------------------------------
            Layer (type)               Output Shape         Param #
    ================================================================
                Conv2d-1           [-1, 32, 26, 26]             320
                  LSTM-2  [[-1, 5, 8], [-1, 2, 8]]            1,024
                 Block-3           [-1, 32, 26, 26]               0
                Linear-4                   [-1, 10]           1,290
    ================================================================
    Total params: 2,634
    """
INFO = """\
    =============================================================================================
    Layer (type:depth-idx)          Input Shape       Output Shape      Param #      Kernel Shape
    =============================================================================================
    Net                             [8, 3, 4, 4]      [8, 5]            --           --
    ├─Encoder: 1-1                  [8, 3, 4, 4]      [8, 6, 4, 4]      7            --
    │    └─Conv2d (conv): 2-1       [8, 3, 4, 4]      [8, 6, 4, 4]      168          [3, 3]
    │    └─Stage: 2-2               [8, 6, 4, 4]      [8, 6, 2, 2]      1,000        --
    ├─ModuleList: 1-2               --                --                (recursive)  --
    ├─Roi: 1-3                      [12, 6]           [12, 6]           --           --
    ├─Conv2d: 1-4                   [8, 3, 4, 4]      [8, 6, 4, 4]      (recursive)  [3, 3]
    ├─Linear: 1-5                   [8, 24]           [8, 5]            125          --
    =============================================================================================
    Total params: 1,320
    """
TREE = """\
    Net(
      (wte): Embedding(50, 16), 800 params
      (block): Block(
        (ln): LayerNorm((16,), eps=1e-05, elementwise_affine=True), 32 params
        (attn): SelfAttention(
          (c_attn): Conv1D(), 816 params
          (c_proj): Conv1D(), 272 params
          (drop): Dropout(p=0.1, inplace=False), 0 params
        ), 1,188 params
        (own): Conv1D(), 17 params
      ), 1,240 params
      (head): Linear(in_features=16, out_features=3, bias=True), 51 params
      (conv): Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1)), 224 params
    ), 2,315 params
    =======================================================================
    Total params: 2,315
    """


def read(text, **more):
    return parse_summary(textwrap.dedent(text), "net.txt", **more)


def plain(summary):
    return [(layer.kind, layer.output_shape, layer.parameters, layer.name) for layer in summary.layers]


def test_torchsummary_is_parsed():
    found = read(TABLE)
    assert (found.format, found.batch, found.parameters) == ("torchsummary", None, 2634)
    assert plain(found) == [
        ("conv", (32, 26, 26), 320, "Conv2d"),
        ("rnn", (5 * 8 + 2 * 8,), 1024, "LSTM"),
        ("other", (32, 26, 26), 0, "Block"),
        ("linear", (10,), 1290, "Linear"),
    ]


def test_torchsummary_has_its_batch():
    assert read(TABLE.replace("[-1", "[64")).batch == 64


def test_torchinfo_is_parsed():
    found = read(INFO)
    assert (found.format, found.batch, found.parameters) == ("torchinfo", 8, 1320)
    assert plain(found) == [
        ("other", (), 7, "Encoder"),
        ("conv", (6, 4, 4), 168, "Conv2d"),
        ("other", (6, 2, 2), 1000, "Stage"),
        ("other", (), 0, "ModuleList"),
        ("other", (2, 6), 0, "Roi"),  # 12 of them in 8 samples
        ("conv", (6, 4, 4), 0, "Conv2d"),
        ("linear", (5,), 125, "Linear"),
        ("other", (), 20, "(not shown)"),
    ]


def test_modelsummary_is_parsed():
    found = read(TREE)
    assert (found.format, found.batch, found.parameters) == ("modelsummary", None, 2315)
    assert plain(found) == [
        ("embedding", (16,), 800, "Embedding"),
        ("norm", (16,), 32, "LayerNorm"),
        ("linear", (48,), 816, "Conv1D"),  # 816 = 16 x 48 + 48
        ("linear", (16,), 272, "Conv1D"),  # 272 = 16 x 16 + 16; 49 does not divide it
        ("dropout", (16,), 0, "Dropout"),
        ("attention", (16,), 100, "SelfAttention"),  # what it holds beside its layers
        ("linear", (1,), 17, "Conv1D"),
        ("other", (1,), 3, "Block"),
        ("linear", (3,), 51, "Linear"),
        ("conv", (), 224, "Conv2d"),
    ]


def test_modelsummary_is_parsed_with_a_given_sequence():
    assert read(TREE, sequence=512).layers[0].output_shape == (512, 16)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        pytest.param("", 1, "no summary of a model begins here", id="empty"),
        pytest.param(TABLE.replace("            320", "            3x0"), 5, "is no layer", id="count"),
        pytest.param(TABLE.replace("Block-3 ", "Block-4 "), 7, "layer 3 is missing", id="gap"),
        pytest.param(TABLE.replace("[-1, 10]", "[-1, ten]"), 8, "is no extent of a shape", id="extent"),
        pytest.param(TABLE.replace("[-1, 10]", "[-7, 10]"), 8, "extent -7 of a shape", id="negative"),
        pytest.param(TABLE.replace("[-1, 10]", "[-1, -1]"), 8, "extent -1 of a shape", id="second -1"),
        pytest.param(TABLE.replace("1,290\n    " + 64 * "=", "1,290"), 9, "is no layer", id="no rule below"),
        pytest.param("\n".join(TABLE.splitlines()[:7]), 7, "the summary ends here", id="torchsummary, cut"),
        pytest.param(INFO.replace("168  ", "     "), 6, "wanted 5 columns", id="column"),
        pytest.param(INFO.replace("Output Shape", "Kernel      "), 2, "no column `Output Shape`", id="title"),
        pytest.param(INFO.replace("Param #", "Param #s"), 2, "no column `Param #`", id="other title"),
        pytest.param(INFO.replace("Stage: 2-2", "Stage     "), 7, "`Stage` has no depth", id="depth"),
        pytest.param(INFO.replace("params: 1,320", "params: lots"), 13, "`lots` is no count", id="total"),
        pytest.param(TREE.replace("), 272 params", ")"), 7, "cannot be read", id="tree, no count"),
        pytest.param("\n".join(TREE.splitlines()[:6]), 6, "`SelfAttention` of line 5 is not closed", id="tree, cut"),
    ],
)
def test_a_broken_summary_is_refused_with_its_line(text, line, reason):
    with pytest.raises(SummaryError) as error:
        read(text)
    assert error.value.line == line
    assert reason in error.value.reason
    assert error.value.message.startswith(f"net.txt:{line}: ")


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_published_summaries_are_parsed(path):
    text = path.read_text(encoding="utf-8")
    found = parse_summary(text, path.name)
    assert len(found.layers) > 5
    assert sum(layer.outputs > 0 for layer in found.layers) > 0.8 * len(found.layers)
    tree = re.search(r"^\), ([\d,]+) params", text, re.MULTILINE)
    total = tree or re.search(r"^Total params: ([\d,]+)", text, re.MULTILINE)
    assert found.parameters == int(total.group(1).replace(",", ""))
    per_sample = re.search(r"activations per sample: ([\d,]+)", text)
    if per_sample and "dlrm" not in path.name:  # that one was counted otherwise
        assert sum(layer.outputs for layer in found.layers) == int(per_sample.group(1).replace(",", ""))


def test_the_published_summaries_exist():
    if not DATA.is_dir():
        pytest.skip("the published summaries are not part of the repository")
    assert len(PUBLISHED) == 37 + 35 + 35


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
def test_a_training_log_is_refused(path):
    with pytest.raises(SummaryError, match="no summary of a model"):
        parse_summary(path.read_text(encoding="utf-8"), path.name)


@given(st.text(), st.sampled_from([TABLE, INFO, TREE]), st.data())
@example("", TABLE, None)
def test_any_text_gives_layers_or_an_error_with_a_line(noise, text, data):
    base = textwrap.dedent(text)
    at, until = (0, 0) if data is None else sorted(data.draw(st.tuples(*[st.integers(0, len(base))] * 2)))
    broken = base[:at] + noise + base[until:]
    try:
        found = parse_summary(broken)
    except SummaryError as error:
        assert 1 <= error.line <= broken.count("\n") + 1  # noqa: PT017 (no error is fine, too)
        return
    assert all(layer.kind in LAYER_KINDS and layer.parameters >= 0 for layer in found.layers)
    assert all(extent >= 0 for layer in found.layers for extent in layer.output_shape)


LAYERS = st.lists(
    st.builds(
        Layer,
        kind=st.just("linear"),
        output_shape=st.lists(st.integers(0, 10**6), min_size=1, max_size=4).map(tuple),
        parameters=st.integers(0, 10**12),
        name=st.just("Linear"),
    ),
    min_size=1,
    max_size=20,
)


@given(LAYERS, st.integers(1, 4096))
def test_a_printed_torchsummary_is_parsed_back(layers, batch):
    lines = [
        f"{f'Linear-{number}':>20} {[batch, *layer.output_shape]!s:>25} {layer.parameters:>15,}"
        for number, layer in enumerate(layers, start=1)
    ]
    rule = "=" * 64
    found = parse_summary("\n".join(["  Layer (type)     Output Shape    Param #", rule, *lines, rule]))
    assert found.layers == tuple(layers)
    assert found.batch == batch


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Conv2d", "conv"),
        ("ConvTranspose2d", "conv"),
        ("Conv1d", "conv"),
        ("Conv1D", "linear"),
        ("BatchNormAct2d", "batchnorm"),
        ("LlamaRMSNorm", "norm"),
        ("NewGELUActivation", "activation"),
        ("BertSdpaSelfAttention", "attention"),
        ("AdaptiveAvgPool2d", "pool"),
        ("MaxPool2d", "pool"),
        ("Dropout2d", "dropout"),
        ("LogSoftmax", "softmax"),
        ("ZeroPad2d", "reshape"),
        ("Flatten", "reshape"),
        ("Bottleneck", "other"),
        ("BasicConv2d", "other"),
        ("Conv2dNormActivation", "other"),
    ],
)
def test_layer_classes_have_their_kinds(name, kind):
    assert layer_kind(name) == kind
