"""Groups of rows in HDF5 files that are not on this machine."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="tracing needs torch")
pytest.importorskip("numpy")

from cotenant.tracing.data.data_options import SyntheticSample
from cotenant.tracing.data.files.synthetic_recordings import _SyntheticRows


def test_a_group_has_rows_by_name():
    image = SyntheticSample(shape=(4, 6, 3), dtype="uint8")
    group = _SyntheticRows(image, image)
    assert [*group.keys()] == [name for name, _ in group.items()]
    assert len(group.values()) == len(group) == 2000
    assert group.values()[-1][:].shape == group.items()[0][1][:].shape == group["0"].shape == (4, 6, 3)
