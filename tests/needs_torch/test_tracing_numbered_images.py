"""Names of images that a script reads as numbers, made with `--synthetic-data`."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from traced_scripts import trained

IMAGES = pytest.mark.skipif(importlib.util.find_spec("PIL") is None, reason="needs Pillow")


@IMAGES
@pytest.mark.parametrize("stem", ["split('.')[0]", "rsplit('.', 1)[0]"])
def test_frames_whose_names_are_read_as_numbers_count_up(tmp_path, stem):
    source = f"""
    frames = glob.glob(os.path.join("data/video", "*.jpg"))
    numbers = sorted(int(os.path.basename(frame).{stem}) for frame in frames)
    counts_up = numbers == list(range(len(frames)))
    assert len(frames) > 100 and counts_up is {stem.startswith("split")}, numbers[:9]
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:7"])
