"""Layers of modules, without running them on data."""

from __future__ import annotations

import pytest

from cotenant.core.errors import UsageError
from cotenant.learn.model_summaries.module import summarize_module

torch = pytest.importorskip("torch", reason="the modules are torch's")


def plain(module, *inputs, **more):
    return [
        (layer.kind, layer.output_shape, layer.parameters) for layer in summarize_module(module, inputs, **more).layers
    ]


def test_a_summary_leaves_the_network_unchanged():
    nn = torch.nn
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))
    assert plain(net, torch.ones(4, 3, 8, 8)) == [
        ("conv", (8, 6, 6), 224),
        ("batchnorm", (8, 6, 6), 16),
        ("activation", (8, 6, 6), 0),
        ("reshape", (288,), 0),
        ("linear", (5,), 288 * 5 + 5),
    ]
    assert int(net[1].num_batches_tracked) == 0
    assert net[0].weight.device.type == "cpu"
    assert not any(module._forward_hooks for module in net.modules())


def test_attention_and_its_projections_are_one_layer():
    net = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    first = plain(net, torch.ones(4, 7, 16))[0]
    assert first == ("attention", (7, 16), 3 * 16 * 16 + 3 * 16 + 16 * 16 + 16)
    assert sum(layer[2] for layer in plain(net, torch.ones(4, 7, 16))) == sum(
        parameter.numel() for parameter in net.parameters()
    )


def test_a_meta_module_with_the_batch_in_the_second_dimension_is_summarized():
    with torch.device("meta"):
        net = torch.nn.LSTM(6, 10)
        batch = torch.ones(7, 4, 6)
    assert plain(net, batch, batch_at=1) == [("rnn", (7, 10), 4 * (6 * 10 + 10 * 10 + 20))]
    assert summarize_module(net, (batch,), batch_at=1).batch == 4


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(50, 8)
        self.scale = torch.nn.Parameter(torch.ones(8))
        self.head = torch.nn.Linear(8, 50, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words):
        return self.head(self.words(words) * self.scale)


def test_parameters_are_counted_once_where_tied_and_include_direct_ones():
    words = torch.ones(2, 5, dtype=torch.long)
    assert plain(Tied(), words) == [("embedding", (5, 8), 400), ("linear", (5, 50), 0), ("other", (), 8)]


class Looks(torch.nn.Module):
    def forward(self, x):
        return x if x.sum().item() > 0 else -x


def test_a_network_that_depends_on_values_is_refused():
    with pytest.raises(UsageError, match=r"`Looks` cannot be summarized for these inputs") as error:
        summarize_module(Looks(), (torch.ones(2),))
    assert "estimate its training script" in error.value.hint
