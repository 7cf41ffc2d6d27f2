"""Names of made-up files that a script keeps by more of their end than a suffix."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from traced_scripts import trained


@pytest.mark.skipif(importlib.util.find_spec("PIL") is None, reason="needs Pillow")
def test_names_end_in_what_their_script_keeps(tmp_path):
    source = """
    import fnmatch

    def is_label(name):
        return name.endswith("_labelTrainIds.png")

    def pairs(folder):
        images, masks = [], []
        for name in os.listdir(folder):
            if name.endswith("_img.png"):
                images.append(name)
            elif name.endswith("_mask.png"):
                masks.append(name)
        return images, masks

    def walked(folder, is_kept=is_label):
        return [name for _, _, names in os.walk(folder) for name in names if is_label(name)]

    def skipped(folder):
        found = []
        for name in os.listdir(folder):
            if not name.endswith("-crop.png"):
                continue
            found.append(name)
        return found

    labels = walked("data/gtFine/train")
    assert len(set(labels)) >= 128 and all(map(is_label, labels))
    images, masks = pairs("data/pairs")
    assert len(images) == len(masks) >= 64
    assert sorted(name.replace("_img", "_mask") for name in images) == sorted(masks)
    assert len(skipped("data/crops")) >= 128
    matched = fnmatch.filter(os.listdir("data/matched"), "*_mask.png")
    assert len(matched) >= 128
    assert len([name for name in os.listdir("data/1st_manual") if name.endswith("_manual1.gif")]) >= 128
    plain = [name for name in os.listdir("data/plain") if not name.endswith("_mask.png")]
    either = [name for name in os.listdir("data/either") if name.endswith((".png", "_mask.png"))]
    assert len(plain) >= 128 and not any("mask" in name for name in either) and len(either) >= 128
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:19"])
