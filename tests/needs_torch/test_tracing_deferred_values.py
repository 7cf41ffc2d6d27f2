"""Masks that are too large for their values to be tracked, made of boxes and anchors that are known."""

from __future__ import annotations

import pytest

from traced_scripts import trained

pytest.importorskip("torch", reason="tracing needs torch")

BOXES = """
images, boxes, side = 8, 4, 80  # 204,800 pairs of a box and an anchor
corners = torch.tensor([[10.0, 10.0], [20.0, 30.0]]).expand(images * boxes, 2, 2).contiguous().cuda()
steps = torch.arange(side, device="cuda") + 0.5
strides = torch.rand(3, device="cuda").new_full((side * side, 1), torch.ones(3).cuda()[0])
anchors = torch.stack(torch.meshgrid(steps, steps, indexing="ij"), -1).view(-1, 2) * strides
first, last = corners.view(-1, 2, 2).chunk(2, 1)
deltas = torch.cat((anchors[None] - first, last - anchors[None]), dim=2).view(images, boxes, side * side, 4)
inside = images * boxes * 10 * 20
features = torch.rand(images, boxes, side * side, device="cuda")
"""


@pytest.mark.parametrize(
    ("mask", "count"),
    [
        pytest.param("deltas.amin(3).gt_(1e-9).bool()", "inside", id="written to in place"),
        pytest.param("(deltas.amin(3) > 0) & (deltas.amin(3) > 0).detach()", "inside", id="of two"),
        pytest.param("(deltas.amin(3) > 0)[:2]", "inside // 4", id="a view"),
        pytest.param(
            "(lambda m, first: (m.neg_() < 0) & first)(m := deltas.amin(3), m > 0)", "inside", id="before and after"
        ),
        pytest.param("deltas.mul_(-1).amax(3) < 0", "inside", id="after a write to the base"),
    ],
)
def test_pairs_of_boxes_and_anchors_are_counted(tmp_path, mask, count):
    assert trained(tmp_path, _joined(f"""
    mask = {mask}
    assert len(features[:len(mask)][mask]) == len(mask.nonzero()) == {count}, len(mask.nonzero())
    """)).warnings == ()  # fmt: skip


@pytest.mark.parametrize(
    "write",
    [
        pytest.param("mask.logical_or_(features > 0.5)", id="to the mask"),
        pytest.param("mask[0].logical_or_(features[0] > 0.5)", id="to a view"),
        pytest.param("torch.gt(features, 0.5, out=mask)", id="as an output"),
        pytest.param("torch.sort(features > 0.5, out=(mask, torch.empty_like(mask, dtype=int)))", id="as one of two"),
        pytest.param(
            "mask = mask.long(); torch.max(features[None], 0, out=(torch.empty_like(features), mask))",
            id="as the other",
        ),
        pytest.param("mask |= features > 0.5", id="as augmented assignment"),
        pytest.param("mask = mask | (features > 0.5)", id="another mask"),
        pytest.param("mask = torch.rand_like(deltas.amin(3)) > 0.5", id="random numbers"),
    ],
)
def test_unknown_values_leave_nothing_known(tmp_path, write):
    trained(tmp_path, _joined(f"""
    mask = deltas.amin(3) > 0
    {write}
    assert len(mask.nonzero()) == mask.numel()
    """))  # fmt: skip


def test_a_sparse_matrix_of_known_values_has_no_deferred_ones(tmp_path):
    trained(tmp_path, """
    positions = torch.arange(1000, device="cuda").expand(2, 1000).contiguous()
    matrix = torch.sparse_coo_tensor(positions, torch.ones(1000, device="cuda"), (1000, 1000)).coalesce()
    assert (matrix.t() @ torch.ones(1000, 8, device="cuda")).shape == (1000, 8)
    """)  # fmt: skip


def test_what_was_assumed_of_values_leaves_large_masks_unknown(tmp_path):
    found = trained(tmp_path, _joined("""
    chosen = (torch.rand(40, device="cuda") > 0.5).nonzero()[:, 0]  # all, as a warning says
    mask = chosen[:, None] < torch.arange(64000, device="cuda")
    assert len(mask.nonzero()) == mask.numel()
    """)).warnings  # fmt: skip
    assert ["every element is found" in warning for warning in found] == [True]


def test_an_expression_of_too_many_elements_is_not_evaluated(tmp_path, monkeypatch):
    from cotenant.tracing.assumptions import deferred_values

    monkeypatch.setattr(deferred_values, "_MAX_COMPUTED", 1 << 20)  # deltas alone have 819,200, and parts of their own
    trained(tmp_path, _joined("""
    assert len((deltas > 0).nonzero()) == deltas.numel()
    """))  # fmt: skip


def _joined(source: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in BOXES.splitlines()) + source
