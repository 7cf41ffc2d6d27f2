"""Buffers of recurrent layers: their order, and cuDNN's workspaces and reserve space, as on a null GPU."""

from __future__ import annotations

import pytest

from traced_calls import requests_of_calls
from traced_scripts import traced

torch = pytest.importorskip("torch", reason="tracing needs torch")


@pytest.fixture(scope="module")
def requests_of(tmp_path_factory):
    return requests_of_calls(tmp_path_factory.mktemp("recurrent"), CALLS)


CALLS = {
    "LSTM": ("m = nn.LSTM(32, 512).cuda(); x = made(10, 4, 32)", "m(x)"),
    "gradient of an LSTM": (
        "y, _ = m(x); g = torch.ones_like(y)",
        "torch.autograd.grad(y, [x, *m.parameters()], g)",
    ),
    "GRU of two layers in both directions": (
        "m = nn.GRU(32, 512, 2, bidirectional=True, dropout=0.0).cuda().half(); x = made(20, 32, 32, dtype=torch.half)",
        "m(x)",
    ),
    "LSTM of packed sequences": (
        ("m = nn.LSTM(32, 512).cuda(); x = torch.ones(10, 4, 32, device='cuda')\n"
         "x = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([10, 7, 5, 3]))"),
        "m(x)",
    ),
    "LSTM with a projection": (
        "m = nn.LSTM(32, 512, proj_size=256).cuda(); x = torch.ones(10, 4, 32, device='cuda')",
        "m(x)",
    ),
    "LSTM with dropout": (
        "m = nn.LSTM(32, 512, 3, dropout=0.5).cuda(); x = torch.ones(10, 4, 32, device='cuda')",
        "m(x)",
    ),
    "LSTM in both directions, packed": (
        ("m = nn.LSTM(200, 256, 2, bidirectional=True, dropout=0.3).cuda()\n"
         "x = torch.ones(60, 64, 200, device='cuda')\n"
         "x = nn.utils.rnn.pack_padded_sequence(x, torch.full((64,), 60))"),
        "m(x)",
    ),
    "GRU, packed, of several lengths": (
        ("m = nn.GRU(128, 512, 2, bidirectional=True, dropout=0.3).cuda()\n"
         "x = nn.utils.rnn.pack_padded_sequence(torch.ones(60, 16, 128, device='cuda'),\n"
         "    torch.tensor([60, *range(2, 17)]), enforce_sorted=False)"),
        "m(x)",
    ),
    "packing of sequences that come first": (
        "x = torch.ones(64, 60, 200, device='cuda')",
        "nn.utils.rnn.pack_padded_sequence(x, torch.tensor([60] * 32 + [30] * 32), batch_first=True)",
    ),
    "GRU of wide inputs, packed": (
        ("m = nn.GRU(3000, 512, 2, bidirectional=True, dropout=0.3).cuda()\n"
         "x = nn.utils.rnn.pack_padded_sequence(torch.ones(20, 8, 3000, device='cuda'), torch.full((8,), 20))"),
        "m(x)",
    ),
    "GRU of wide inputs": (
        ("m = nn.GRU(512, 256, 2, bidirectional=True, dropout=0.3).cuda()\n"
         "x = torch.ones(20, 8, 512, device='cuda')"),
        "m(x)",
    ),
    "LSTM of wide inputs, whose layers overlap": (
        ("m = nn.LSTM(3000, 320, 3).cuda(); n = torch.tensor([51 - k * 51 // 64 for k in range(32)])\n"
         "x = nn.utils.rnn.pack_padded_sequence(torch.ones(51, 32, 3000, device='cuda'), n)"),
        "m(x)",
    ),
    "plain layers with dropout, packed": (
        ("m = nn.RNN(800, 400, 5, dropout=0.3).cuda()\n"
         "x = nn.utils.rnn.pack_padded_sequence(torch.ones(33, 4, 800, device='cuda'), torch.full((4,), 33))"),
        "m(x)",
    ),
    "GRU in evaluation": (
        "m = nn.GRU(200, 256, 2, bidirectional=True).cuda().eval(); x = torch.ones(60, 64, 200, device='cuda')",
        "m(x)",
    ),
}  # fmt: skip
DROPOUT_STATES = 108 * 2048 * 48
WANTED = {
    "LSTM": [8192, 8192, 81_920, 8192, 8192, 13_341_984, 409_856],
    "packing of sequences that come first": [1_536_000, 768_000, 2_304_000],
    "gradient of an LSTM": [8192, 8192, 5120, 8192, 8192, 13_341_984, 4_472_832, 13_341_984],
}


@pytest.mark.parametrize("name", WANTED)
def test_requests_are_those_of_a_cuda_build(requests_of, name):
    assert requests_of[name] == WANTED[name]


@pytest.mark.parametrize(
    ("name", "workspace", "reserve"),
    [
        ("GRU of two layers in both directions", 55_198_208, 17_039_616),
        ("LSTM of packed sequences", 13_099_264, 256_256),
        ("LSTM with dropout", 47_142_176, 1_398_016),
        ("LSTM in both directions, packed", 92_864_768, 86_999_296),
        ("GRU, packed, of several lengths", 64_942_336, 10_629_376),
        ("GRU of wide inputs, packed", 104_771_840, 8_560_896),
        ("GRU of wide inputs", 46_498_112, 4_280_576),
        ("LSTM of wide inputs, whose layers overlap", 64_953_920, 27_287_296),
        ("plain layers with dropout, packed", 49_648_896, 1_927_552),
        ("GRU in evaluation", 93_168_384, 0),
    ],
)
def test_recurrent_layers_reserve_what_cudnn_says(requests_of, name, workspace, reserve):
    wanted = [workspace, reserve] if reserve else [workspace]
    assert [size for size in requests_of[name] if size in wanted] == wanted


def test_the_workspace_with_a_projection(requests_of):
    assert requests_of["LSTM with a projection"][-2:] == [pytest.approx(11_801_888, rel=0.01), 532_736]


def test_the_first_dropout_makes_random_states_which_stay(requests_of):
    assert requests_of["LSTM with dropout"][2:4] == [8, DROPOUT_STATES]
    assert DROPOUT_STATES not in requests_of["LSTM in both directions, packed"]


def test_contiguous_operands_are_freed_before_the_gradients_of_weights(tmp_path):
    """Source: ATen/native/cudnn/RNN.cpp, `_cudnn_rnn_backward_input`, which makes them for itself."""
    source = """
import torch
from torch import nn
layer, head = nn.LSTM(24, 512, batch_first=True).cuda(), nn.Linear(512, 1).cuda()
optimizer = torch.optim.SGD([*layer.parameters(), *head.parameters()], lr=0.1)
for _ in range(3):
    head(layer(torch.ones(5, 70, 24, device="cuda", requires_grad=True))[0]).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    events = traced(tmp_path, source).events
    gradients = 4 * (4 * 512 * (24 + 512 + 2))
    copies = [4 * 5 * 70 * size for size in (24, 512)]
    here = next(n for n, event in enumerate(events) if event.bytes == gradients and event.phase == "backward")
    operands = [event.storage_id for event in events[:here] if event.phase == "backward" and event.bytes in copies]
    freed = [event.storage_id for event in events[:here] if event.action == "free"]
    assert {copies[0], copies[1]} <= {event.bytes for event in events if event.storage_id in operands}
    assert sum(number in freed for number in operands) >= 2
