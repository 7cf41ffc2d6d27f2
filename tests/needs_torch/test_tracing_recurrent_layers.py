"""Buffers of recurrent layers: their order, and cuDNN's workspaces and reserve space, as on a null GPU."""

from __future__ import annotations

import pytest

from traced_calls import requests_of_calls

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
}  # fmt: skip
WANTED = {
    "LSTM": [8192, 8192, 81_920, 8192, 8192, 13_341_984, 409_856],
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
        ("LSTM with a projection", 11_801_888, 532_736),
        ("LSTM with dropout", 47_142_176, 1_398_016),
    ],
)
def test_recurrent_layers_reserve_what_cudnn_says(requests_of, name, workspace, reserve):
    """The workspace is within 1 %, the reserve space equal."""
    found = requests_of[name][-2:]
    assert found == [pytest.approx(workspace, rel=0.01), reserve]
