"""Rows of published measurements of detectors with images of one size."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from cotenant.core.units import GiB, MiB

ROOT = Path(__file__).resolve().parents[3]
VITDET = {
    "config": "configs/COCO/mask_rcnn_vitdet_l_100ep.py",
    "image": "1024x1024 LSJ",
    "peak_gib": "20.9",
}


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.estimator.published_detection_rows")


def test_a_row_of_vitdet_names_its_configuration_and_the_fullest_image(tables):
    row = tables.vitdet_row(VITDET)
    assert row.args == ("--config", "COCO/mask_rcnn_vitdet_l_100ep.py", "--objects", "63", "--old-torch")
    assert row.quantity == "allocated"
    assert row.measured_bytes == round(20.9 * GiB)
    low, high = row.readings
    assert low / MiB == pytest.approx(20_850, abs=1)
    assert high / GiB == pytest.approx(20.95, abs=1e-3)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"image": "ResizeShortestEdge 640..800 (max 1333)"}, "images of varying size"),
        ({"config": "configs/LVIS/mask_rcnn_vitdet_l_100ep.py"}, "objects in the fullest image of LVIS not known"),
    ],
)
def test_rows_of_unknown_sizes_are_left_out(tables, changed, reason):
    assert tables.vitdet_row({**VITDET, **changed}) == reason
