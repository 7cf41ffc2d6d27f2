"""The id of a configuration rebuilds it; impossible configurations are refused."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.errors import UsageError
from cotenant.learn.data_collection.configs import (
    CnnConfig,
    MlpConfig,
    TransformerConfig,
    config_id,
    family_of,
    fields_of,
    make_config,
    parse_id,
    settings_of,
)
from cotenant.learn.data_collection.widths import channel_widths, halvings, hidden_widths
from cotenant.learn.datasets.dataset_row import FAMILIES

MLP = MlpConfig(
    shape="pyramid",
    inputs=1259,
    depth=8,
    norm="batchnorm",
    batch=717,
    classes=79,
    activation="relu",
    dropout=250,
    optimizer="adam",
    precision="fp32",
)
CNN = CnnConfig(
    shape="uniform",
    channels=3,
    image=32,
    depth=6,
    filters=16,
    kernel=3,
    norm="groupnorm",
    pooling="maxpool",
    batch=8,
    classes=10,
    activation="silu",
    dropout=0,
    optimizer="sgd",
    precision="bf16",
)
TRANSFORMER = TransformerConfig(
    shape="encdec",
    vocabulary=1000,
    length=16,
    width=32,
    depth=3,
    heads=4,
    feedforward=64,
    batch=2,
    classes=5,
    activation="gelu",
    dropout=100,
    optimizer="adamw",
    precision="fp16",
)


def test_an_id_lists_every_setting():
    assert config_id(MLP) == ("mlp_pyramid_batch717_classes79_relu_dropout250_adam_fp32_inputs1259_depth8_batchnorm")
    assert config_id(CNN).startswith("cnn_uniform_batch8_")
    assert family_of(TRANSFORMER) == "transformer"


@pytest.mark.parametrize("config", [MLP, CNN, TRANSFORMER], ids=family_of)
def test_an_id_rebuilds_every_setting(config):
    assert parse_id(config_id(config)) == config
    for name, words in fields_of(family_of(config)).items():
        now = getattr(config, name)
        changed = next(word for word in words if word not in {now, "layernorm", "gpt"}) if words else now * 3
        if (name, words) == ("heads", ()) or changed == now:
            continue
        other = dataclasses.replace(config, **{name: changed, **({"heads": 1} if changed == "conv1d" else {})})
        assert parse_id(config_id(other)) == other
        assert config_id(other) != config_id(config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"norm": "groupnorm"}, "`groupnorm` is for images", id="norm of images"),
        pytest.param({"batch": 1}, "batch normalization needs a batch of 2", id="a single sample"),
        pytest.param({"batch": 0}, "`batch` is `0`, wanted a whole number from 1", id="no sample"),
        pytest.param({"classes": 1}, "`classes` is `1`, wanted a whole number from 2", id="one class"),
        pytest.param({"dropout": 1000}, "wanted less than 1000", id="all dropped"),
        pytest.param({"activation": "sine"}, "`activation` is `sine`, wanted one of relu", id="word"),
        pytest.param({"depth": 2.5}, "`depth` is `2.5`", id="fraction"),
        pytest.param({"depth": True}, "`depth` is `True`", id="truth"),
        pytest.param({"width": 8}, "missing or unknown: `width`", id="unknown"),
    ],
)
def test_an_impossible_mlp_is_refused(change, message):
    with pytest.raises(UsageError) as error:
        make_config("mlp", {**settings_of(MLP), **change})
    assert message in error.value.message


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        pytest.param(CNN, {"kernel": 4}, "`kernel` is 4, wanted an odd number", id="even kernel"),
        pytest.param(CNN, {"norm": "layernorm"}, "`layernorm` is for vectors", id="norm of vectors"),
        pytest.param(TRANSFORMER, {"heads": 5}, "`width` 32 is no multiple of `heads` 5", id="heads"),
        pytest.param(TRANSFORMER, {"shape": "gpt"}, "`classes` is 5, wanted 1000", id="gpt"),
        pytest.param(TRANSFORMER, {"shape": "conv1d"}, "wanted `heads` of 1", id="conv1d"),
    ],
)
def test_an_impossible_cnn_or_transformer_is_refused(config, change, message):
    with pytest.raises(UsageError) as error:
        make_config(family_of(config), {**settings_of(config), **change})
    assert message in error.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "begins with none of mlp, cnn, transformer"),
        ("gnn_uniform", "begins with none of"),
        ("mlp_pyramid", "1 settings, wanted 10"),
        (config_id(MLP).replace("batch717", "batch"), "`batch` is no `batch`, wanted e.g. `batch8`"),
        (config_id(MLP).replace("batch717", "size717"), "`size717` is no `batch`"),
        (config_id(MLP).replace("batch717", "batch٣"), "is no `batch`"),
        (config_id(MLP).replace("_relu", "_elur"), "`activation` is `elur`"),
    ],
)
def test_a_text_that_is_not_an_id_is_refused(text, message):
    with pytest.raises(UsageError) as error:
        parse_id(text)
    assert message in error.value.message


@given(
    st.text(alphabet="abmlpcn_0123456789relu", max_size=60), st.sampled_from([MLP, CNN, TRANSFORMER]), st.integers(0)
)
def test_any_text_is_an_id_or_an_error(noise, config, at):
    base = config_id(config)
    text = base[: at % len(base)] + noise + base[at % len(base) :]
    try:
        found = parse_id(text)
    except UsageError:
        return
    assert parse_id(config_id(found)) == found


@pytest.mark.parametrize("family", FAMILIES)
def test_the_shape_is_the_first_setting_of_an_id(family):
    assert next(iter(fields_of(family))) == "shape"


@pytest.mark.parametrize(
    ("shape", "widths"),
    [
        ("pyramid", (629, 314, 157, 79, 79, 79, 79, 79)),  # row 0 of the published set
        ("uniform", (1259,) * 8),
        ("gradual", (1128, 997, 866, 735, 603, 472, 341, 210)),
        ("bottleneck", (629, 314, 157, 79, 79, 157, 314, 629)),
    ],
)
def test_hidden_widths_follow_the_shape(shape, widths):
    assert hidden_widths(dataclasses.replace(MLP, shape=shape)) == widths


@pytest.mark.parametrize(
    ("shape", "widths"),
    [
        ("uniform", (16,) * 6),
        ("pyramid", (16, 28, 49, 84, 147, 256)),
        ("gradual", (16, 26, 35, 45, 54, 64)),
        ("bottleneck", (16, 8, 4, 4, 8, 16)),
        ("hourglass", (16, 45, 128, 128, 45, 16)),
        ("residual", (16, 32, 32, 64, 128, 128)),
        ("dense", (4,) * 6),
    ],
)
def test_channels_follow_the_shape(shape, widths):
    assert channel_widths(dataclasses.replace(CNN, shape=shape)) == widths


@given(st.integers(1, 40), st.integers(1, 2000), st.sampled_from(fields_of("cnn")["shape"]))
def test_channels_stay_below_their_limit(depth, filters, shape):
    widths = channel_widths(dataclasses.replace(CNN, shape=shape, depth=depth, filters=filters))
    assert len(widths) == depth
    assert all(4 <= width <= max(2048, filters) for width in widths)
    assert len(halvings(depth)) == min(4, depth)
    assert max(halvings(depth)) == depth - 1
