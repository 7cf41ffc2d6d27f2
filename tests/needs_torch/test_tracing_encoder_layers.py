"""Attention and encoder layers in evaluation, one call each: the requests of PyTorch's CUDA build on a null A100."""

from __future__ import annotations

import pytest

from traced_calls import requests_of_calls

torch = pytest.importorskip("torch", reason="tracing needs torch")

CALLS = {
    "attention": (
        ("m = nn.MultiheadAttention(512, 8, batch_first=True).cuda().eval().requires_grad_(False)\n"
         "x = torch.ones(16, 128, 512, device='cuda'); pad = torch.zeros(16, 128, dtype=torch.bool, device='cuda')"),
        "m(x, x, x, need_weights=False)",
    ),
    "its weights": ("", "m(x, x, x)"),
    "padded": ("", "m(x, x, x, key_padding_mask=pad, need_weights=False)"),
    "heads of 10 values": (
        ("m = nn.MultiheadAttention(60, 6, batch_first=True).cuda().eval().requires_grad_(False)\n"
         "short = torch.ones(16, 128, 60, device='cuda')"),
        "m(short, short, short, need_weights=False)",
    ),
    "heads of 12 values": (
        ("m = nn.MultiheadAttention(72, 6, batch_first=True).cuda().eval().requires_grad_(False)\n"
         "short = torch.ones(16, 128, 72, device='cuda')"),
        "m(short, short, short, need_weights=False)",
    ),
    "layer": (
        ("layer = nn.TransformerEncoderLayer(512, 8, 1024, batch_first=True).cuda()\n"
         "layer = layer.eval().requires_grad_(False)"),
        "layer(x)",
    ),
    "layer with norms first": (
        ("layer = nn.TransformerEncoderLayer(512, 8, 1024, batch_first=True, norm_first=True, activation='gelu')\n"
         "layer = layer.cuda().eval().requires_grad_(False)"),
        "layer(x)",
    ),
    "layer, masked": (
        "mask = torch.zeros(128, 128, dtype=torch.bool, device='cuda')", "layer(x, src_mask=mask)",
    ),
    "layer in inference mode": ("", "torch.inference_mode()(layer)(x)"),
}  # fmt: skip
WIDTH, NORM = 4 * 16 * 128 * 512, [4 * 16 * 128 * 512, 8192, 8192]
PROJECTED, SCORES = 3 * WIDTH, 4 * 16 * 8 * 128 * 128
FEED = [2 * WIDTH, WIDTH]
FIRST = [*NORM, PROJECTED, WIDTH, WIDTH, *NORM, *FEED]
WANTED = {
    "attention": [PROJECTED, WIDTH, WIDTH],
    "its weights": [PROJECTED, PROJECTED, SCORES, WIDTH, WIDTH, SCORES // 8],
    "padded": [8192, PROJECTED, PROJECTED, SCORES, 2048, SCORES, WIDTH, WIDTH],
    "heads of 10 values": [1_474_560, 1_474_560, 6_291_456, 491_520, 491_520],
    "heads of 12 values": [1_769_472, 589_824, 589_824],
    "layer": [PROJECTED, WIDTH, WIDTH, *NORM, *FEED, *NORM],
    "layer with norms first": FIRST,
    "layer, masked": [65_536, *NORM, PROJECTED, PROJECTED, SCORES, SCORES // 4, SCORES, WIDTH, WIDTH, *NORM, *FEED],
    "layer in inference mode": FIRST,
}


@pytest.fixture(scope="module")
def requests_of(tmp_path_factory):
    return requests_of_calls(tmp_path_factory.mktemp("encoders"), CALLS)


@pytest.mark.parametrize("name", WANTED)
def test_requests_are_those_of_a_cuda_build(requests_of, name):
    assert requests_of[name] == WANTED[name]
