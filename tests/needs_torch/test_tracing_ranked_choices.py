"""Indices of `topk` and `sort` that a script reads on the CPU, retyped small after models of time series."""

from __future__ import annotations

import textwrap

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from traced_scripts import traced

TRAIN = """
import torch
layer = torch.nn.Linear(96, 96).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
series = layer(torch.zeros(4, 96, device="cuda"))
def train():
    for _ in range(4):
        layer(torch.zeros(4, 96, device="cuda")).sum().backward()
        optimizer.step()
"""


def trained(folder, source):
    return traced(folder, TRAIN + textwrap.dedent(source) + "\ntrain()\n")


def test_periods_of_the_strongest_frequencies_are_no_zeros(tmp_path):
    source = """
    strength = torch.fft.rfft(series, dim=1).abs().mean(0)
    strength[0] = 0
    _, strongest = torch.topk(strength, 5)
    periods = series.shape[1] // strongest.detach().cpu().numpy()
    assert len(set(periods)) == 5 and min(periods) > 0, periods
    for period in periods:
        series[:, : 96 // period * period].reshape(4, -1, int(period))
    """
    warnings = trained(tmp_path, source).warnings
    assert any("rank first" in warning for warning in warnings), warnings


@pytest.mark.parametrize(
    ("read", "found"),
    [
        pytest.param("series.topk(3, dim=0)[1].tolist()", "[[1] * 96, [2] * 96, [3] * 96]", id="of columns"),
        pytest.param("series.topk(3, dim=0)[1][1:, 2].cpu().tolist()", "[2, 3]", id="a part"),
        pytest.param("series.mean(0).argsort()[:4].tolist()", "[0, 1, 2, 3]", id="argsort"),
        pytest.param("series.mean(0).sort(descending=True)[1].cpu()[:2].tolist()", "[0, 1]", id="sort"),
        pytest.param(
            "torch.rand(128, 40_943, device='cuda').argsort(1).cpu()[5, -2:].tolist()",
            "[40941, 40942]",
            id="of many entities",
        ),
    ],
)
def test_ranks_are_distinct(tmp_path, read, found):
    source = f"""
    layer.requires_grad_(False)
    read = {read}
    assert read == {found}, read
    layer.requires_grad_(True)
    """
    trained(tmp_path, source)


@pytest.mark.parametrize(
    ("found", "count"),
    [
        pytest.param("ranks[1, :] == wanted[1]", 1, id="a row"),
        pytest.param("wanted[1] == ranks[1, 5:]", 1, id="a part of a row, said otherwise"),
        pytest.param("ranks == 7", 4, id="all rows"),
        pytest.param("ranks.T[:, 1] == wanted[1]", 1, id="a column of the transposed"),
        pytest.param("ranks.view(-1)[49_990:50_010] == wanted[1]", 20, id="parts of two rankings"),
        pytest.param("ranks[:, 1] == wanted[1]", 4, id="a column, which is no ranking"),
        pytest.param("ranks[1, :] == ranks[2, :]", 50_000, id="two rankings"),
        pytest.param("ranks[1, :] != wanted[1]", 50_000, id="all others"),
    ],
)
def test_a_number_is_found_once_in_a_ranking(tmp_path, found, count):
    """The rank of an entity among 50,000, as evaluations of knowledge graphs look for it."""
    source = f"""
    ranks = torch.argsort(torch.rand(4, 50_000, device="cuda"), dim=1, descending=True)
    wanted = torch.randint(50_000, (4,), device="cuda")
    assert ({found}).nonzero().size(0) == {count}
    """
    trained(tmp_path, source)
