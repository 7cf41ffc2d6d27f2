"""Generated networks train, and their layers match their configuration."""

from __future__ import annotations

import dataclasses

import pytest

from apart import apart
from cotenant.learn.data_collection.configs import config_id, family_of, parse_id
from cotenant.learn.data_collection.generate import generate
from cotenant.learn.data_collection.ranges import load_ranges

torch = pytest.importorskip("torch", reason="the networks are torch's")

from cotenant.learn.model_summaries.module import summarize_module  # noqa: E402
from cotenant.learn.networks.building import MIN_REPEATED, Training, build, layers_of, make_batch  # noqa: E402
from cotenant.learn.networks.cnn import DenseLayer, ResidualBlock  # noqa: E402


def lightened(config):
    """A CPU takes long over half precision and over wide convolutions."""
    lighter = {"filters": 8, "batch": 4} if family_of(config) == "cnn" else {}
    return dataclasses.replace(config, precision="bf16" if family_of(config) == "mlp" else "fp32", **lighter)


SMALL = [
    lightened(config)
    for name, count in (("mlp-small", 4), ("cnn-small", 7), ("transformer-small", 5))
    for config in generate(load_ranges(name), count, 1)
]


@pytest.mark.parametrize("config", SMALL, ids=config_id)
@apart
def test_a_network_trains_and_its_layers_have_all_parameters(config):
    torch.set_num_threads(1)  # a thread pool does not survive a fork
    torch.manual_seed(0)
    training = Training(config, "cpu")
    losses = [float(training()) for _ in range(2)]
    assert all(0 < loss < 1e3 for loss in losses)
    network = training._network
    assert all(parameter.grad is not None for parameter in network.parameters()), "a weight has no part in the loss"
    assert sum(layer.parameters for layer in layers_of(config)) == sum(
        parameter.numel() for parameter in network.parameters()
    )
    assert training.steps == 2


@pytest.mark.parametrize("config", SMALL, ids=config_id)
def test_a_network_has_no_softmax(config):
    network = build(config).eval()
    inputs, wanted = make_batch(config, "cpu")
    logits = network(*inputs)
    assert logits.shape == (*wanted.shape, config.classes)
    assert (logits.sum(-1) - 1).abs().max() > 1e-3  # a softmax would sum to 1
    assert not any("Softmax" in type(module).__name__ for module in network.modules())


def one(name, **changes):
    return dataclasses.replace(generate(load_ranges(name), 1, 0)[0], **changes)


def test_a_residual_block_adds_its_input():
    config = one("cnn-small", norm="nonorm", activation="gelu", dropout=0, shape="residual")
    block = ResidualBlock(config, 8, 8, stride=1)
    torch.nn.init.zeros_(block.second[0].weight)
    torch.nn.init.zeros_(block.second[0].bias)
    x = torch.randn(2, 8, 6, 6)
    assert torch.equal(block(x), torch.nn.functional.gelu(x))
    assert ResidualBlock(config, 8, 16, stride=2)(x).shape == (2, 16, 3, 3)


def test_a_dense_layer_concatenates_its_input():
    x = torch.randn(2, 8, 6, 6)
    grown = DenseLayer(one("cnn-small", norm="nonorm", shape="dense"), 8, 4)(x)
    assert grown.shape == (2, 12, 6, 6)
    assert torch.equal(grown[:, :8], x)


def test_pooling_halves_the_image_up_to_four_times():
    for pooling, least in (("nopool", 32), ("maxpool", 2), ("stride", 2)):
        for shape in ("uniform", "residual", "dense"):
            layers = layers_of(one("cnn-small", pooling=pooling, shape=shape, depth=6, image=32))
            sizes = [layer.output_shape[-1] for layer in layers if len(layer.output_shape) == 3]
            assert sizes[-2] == least, (pooling, shape)  # the last is the mean over the image


def predict(config, *inputs):
    torch.manual_seed(0)
    return build(config).eval()(*inputs)


def test_gpt_attention_is_causal():
    config = one("transformer-small", shape="gpt", vocabulary=50, classes=50, length=8, width=32, heads=4)
    tokens = torch.arange(8)[None]
    changed = tokens.clone()
    changed[0, 5:] = 40
    before, after = predict(config, tokens), predict(config, changed)
    assert torch.allclose(before[:, :5], after[:, :5], atol=1e-6)
    assert not torch.allclose(before[:, 5:], after[:, 5:], atol=1e-3)


@pytest.mark.parametrize("shape", ["decoder", "encdec"])
def test_a_decoder_attends_to_the_encoder_output(shape):
    config = one("transformer-small", shape=shape, vocabulary=50, length=8, width=32, heads=4, depth=2)
    tokens = torch.arange(8)[None]
    assert not torch.allclose(predict(config, tokens, tokens), predict(config, tokens, tokens + 9), atol=1e-4)
    kinds = [type(module).__name__ for module in build(config).modules()]
    assert kinds.count("TransformerDecoderLayer") == (2 if shape == "decoder" else 1)
    assert kinds.count("TransformerEncoderLayer") == (0 if shape == "decoder" else 1)


def test_a_convolution_over_tokens_is_local():
    config = one("transformer-small", shape="conv1d", heads=1, vocabulary=50, length=16, depth=1, width=32)
    torch.manual_seed(0)
    body = build(config).eval()[:2]
    tokens = torch.arange(16)[None]
    changed = tokens.clone()
    changed[0, 8] = 40
    moved = (body(tokens) - body(changed)).abs().amax(-1)[0] > 1e-6
    assert moved.nonzero().flatten().tolist() == list(range(6, 11))  # two convolutions of 3


def test_tied_weights_of_gpt_are_counted_once():
    config = parse_id(
        "transformer_gpt_batch1_classes50_gelu_dropout0_adam_fp32_vocabulary50_length8_width32_depth1_heads4_feedforward64"
    )
    layers = layers_of(config)
    assert [layer.parameters for layer in layers if layer.name == "Linear"] == [0]
    assert [layer.name for layer in layers].count("Conv1D") == 4


@pytest.mark.parametrize("shape", ["encoder", "decoder", "encdec", "gpt", "conv1d"])
def test_repeated_blocks_are_those_of_a_pass_through_all_of_them(shape):
    config = one("transformer-small", shape=shape, depth=6, width=32, heads=1 if shape == "conv1d" else 4)
    assert config.depth >= MIN_REPEATED
    with torch.device("meta"):
        whole = summarize_module(build(config), make_batch(config, "meta")[0]).layers
    assert layers_of(config) == whole


def test_layers_of_a_large_network_are_listed_without_allocating_it():
    config = parse_id(
        "transformer_encoder_batch128_classes1000_gelu_dropout100_adam_fp32_vocabulary262144_length1024_width2048_depth39"
        "_heads16_feedforward8192"
    )
    assert sum(layer.parameters for layer in layers_of(config)) > 2 * 10**9
