"""Collate functions that write to samples: to the boxes of an image, its place in the batch."""

from __future__ import annotations

import pytest

from traced_scripts import trained

pytest.importorskip("torch", reason="tracing needs torch")


@pytest.mark.parametrize(
    ("made", "joined"),
    [
        pytest.param("torch.zeros(2, 6)", "torch.cat(boxes)", id="tensors"),
        pytest.param("np.zeros((2, 6))", "torch.from_numpy(np.concatenate(boxes))", id="arrays"),
        pytest.param('{"boxes": torch.zeros(2, 6)}', 'torch.cat([one["boxes"] for one in boxes])', id="in a dict"),
    ],
)
def test_each_repetition_of_a_sample_has_its_own_place(tmp_path, made, joined):
    trained(tmp_path, f"""
    import numpy as np
    from torch.utils.data import DataLoader

    class Images(torch.utils.data.Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, index):
            return torch.zeros(3, 80, 80), {made}

    def collate(samples):
        images, boxes = zip(*samples)
        for place, own in enumerate(boxes):
            (own["boxes"] if isinstance(own, dict) else own)[:, 0] += place
        return torch.stack(images), {joined}

    loader = DataLoader(Images(), batch_size=16, collate_fn=collate)
    for epoch in range(2):
        for images, boxes in loader:
            places, counts = boxes[:, 0].unique(return_counts=True)
            assert places.tolist() == list(range(16)), places
            assert counts.tolist() == [2] * 16
    """)  # fmt: skip
