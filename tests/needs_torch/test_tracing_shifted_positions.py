"""Positions that a script computes on the GPU and reads: ends that a number was added to keep their distance."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from traced_scripts import trained

PATCHES = """
    images, where = torch.rand(2, 3, 64, 64, device="cuda"), torch.rand(2, 2, device="cuda")

    def columns(begin, end):
        return images[:, :, :, begin:end].shape[-1]

    start = (where * 64).long()
    end = start + 8
    patches = [images[i, :, start[i, 1] : end[i, 1], start[i, 0] : end[i, 0]] for i in range(2)]
    assert torch.stack(patches).shape == (2, 3, 8, 8)

    center = (where * 64).int()
    low, high = (center - 4).clamp(min=0), torch.clamp_max(center + 4, 64)
    assert columns(low[0, 0], high[0, 0]) == 8 and columns(int(low[1, 1]), int(high[1, 1])) == 8
    assert columns(low.cpu()[0, 0], high.clone().tolist()[0][0]) == 8

    read = (where * 64).long()
    first = read[0, 0].item()
    read += 5
    assert columns(first, read[0, 0].item()) == 5
    read -= 3
    assert columns(first, read[0, 0].item()) == 2

    whole = (where * 64).long()
    assert whole.cpu().tolist() == [[0, 0], [0, 0]] and (whole + 4).cpu().tolist() == [[4, 4], [4, 4]]
    alone = (where * 64).long()
    assert alone[0, 0].item() == 1 and alone.cpu().tolist() == [[0, 0], [0, 0]]
    known = torch.tensor([[3, 5]]).cuda()
    assert (known + 2).tolist() == [[5, 7]] and known.tolist() == [[3, 5]]
    assert (where * 64).long().add(2, alpha=3)[0, 0].item() == 1  # not followed
    assert torch.isnan(where).sum().add(3).item() == 3
"""


def test_positions_keep_their_distance_where_they_are_read(tmp_path):
    trained(tmp_path, PATCHES)
