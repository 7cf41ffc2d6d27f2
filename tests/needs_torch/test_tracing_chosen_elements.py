"""The anchors that a detector assigns to boxes: at most as many as it chose for each box, and not all."""

from __future__ import annotations

import pytest

from traced_scripts import trained

pytest.importorskip("torch", reason="tracing needs torch")

ASSIGNER = """
images, boxes, anchors, chosen = 4, 3, 840, 10
metrics = torch.rand(images, boxes, anchors, device="cuda")
features = torch.rand(images, anchors, 64, device="cuda")
positions = (torch.rand(images, boxes, chosen, device="cuda") * anchors).long()
counts = torch.zeros(metrics.shape, dtype=torch.int8, device="cuda")
counts.scatter_add_(-1, positions, torch.ones_like(positions, dtype=torch.int8))
counts.masked_fill_(counts > 1, 0)
"""


def test_few_anchors_of_each_image_are_assigned(tmp_path):
    source = """
    mask = counts.to(metrics.dtype) * (metrics > 0.5) * torch.ones(images, boxes, 1, device="cuda")
    several = (mask.sum(-2).unsqueeze(1) > 1).expand(-1, boxes, -1)
    best = torch.zeros(mask.shape, dtype=mask.dtype, device="cuda")
    best.scatter_(1, metrics.max(1).indices.unsqueeze(1), 1)
    assigned = torch.where(several, best, mask).sum(-2).bool()
    assert len(mask.nonzero()) == images * boxes * chosen
    assert len(assigned.nonzero()) == images * 2 * boxes * chosen
    assert [len(part[own]) for own, part in zip(assigned, features)] == images * [2 * boxes * chosen]
    assert assigned.cpu().shape == assigned.float().cpu().shape == (images, anchors)
    assert counts.max(-2)[0].bool()[2].nonzero().shape == (boxes * chosen, 1)
    """
    warnings = trained(tmp_path, _joined(source)).warnings
    assert all("assumed: as many are found as were set" in warning for warning in warnings)


@pytest.mark.parametrize(
    "write",
    ["counts.fill_(1)", "counts[0].add_(1)", "counts = counts + 1", "counts = counts >= 0", "counts = counts.ne(1)"],
)
def test_other_writes_leave_no_bound(tmp_path, write):
    trained(tmp_path, _joined(f"""
    {write}
    assert len(counts.nonzero()) == images * boxes * anchors
    """))  # fmt: skip


def _joined(source: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in ASSIGNER.splitlines()) + source
