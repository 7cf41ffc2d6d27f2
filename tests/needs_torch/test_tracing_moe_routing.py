"""How many tokens an expert gets, by the ways in which libraries count them."""

from __future__ import annotations

import pytest

from traced_scripts import traced

torch = pytest.importorskip("torch", reason="tracing needs torch")

MIXTURE = """
import torch
from torch import nn
router, expert = nn.Linear(16, {experts}, bias=False).cuda(), nn.Linear(16, 16).cuda()
optimizer = torch.optim.SGD([*router.parameters(), *expert.parameters()], lr=0.1)
for _ in range(3):
    x = torch.randn({tokens}, 16, device="cuda")
    scores, chosen = router(x).topk(8, dim=1)
    counts = {counts}
    assert counts == [{tokens} * 8 // {experts}] * {experts}, counts[:9]
    order = chosen.flatten().sort(0)[1]
    parts = x[order.div(8, rounding_mode="trunc")].split(counts, dim=0)
    torch.cat([expert(part) for part in parts]).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    "counts",
    [
        pytest.param("torch.zeros_like(router(x)).scatter(1, chosen, 1).long().sum(0).tolist()", id="in numbers"),
        pytest.param("torch.zeros_like(router(x)).scatter_(1, chosen, 1).sum(0).int().tolist()", id="in place"),
        pytest.param(
            "torch.zeros_like(router(x), dtype=torch.int32).scatter(1, chosen, 1).bool().sum(0).tolist()", id="whole"
        ),
        pytest.param(
            "torch.zeros_like(router(x), dtype=torch.int64).scatter_(1, chosen, 1).sum(0).tolist()",
            id="whole, in place",
        ),
    ],
)
@pytest.mark.parametrize("tokens", [64, 8192])
def test_every_expert_gets_the_same_number_of_tokens(tmp_path, counts, tokens):
    experts = 32 if tokens == 64 else 256
    trace = traced(tmp_path, MIXTURE.format(counts=counts, tokens=tokens, experts=experts))
    assert not trace.partial
    assert ["every expert gets the same number" in warning for warning in trace.warnings] == [True]


def test_a_class_that_is_out_of_range_stops_no_trace(tmp_path):
    source = """
    import torch
    labels = torch.tensor([0, 254], dtype=torch.int64).cuda()  # made-up data have such; a kernel checks it
    network = torch.nn.Linear(2, 2).cuda()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(3):
        network(torch.nn.functional.one_hot(labels, 2).float()).sum().backward()
        optimizer.step()
    """
    assert not traced(tmp_path, source).partial
