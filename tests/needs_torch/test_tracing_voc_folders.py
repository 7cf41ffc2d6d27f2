"""PASCAL VOC whose annotations a script lists itself, made with `--synthetic-data`."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from traced_scripts import trained


@pytest.mark.skipif(importlib.util.find_spec("PIL") is None, reason="needs Pillow")
@pytest.mark.parametrize(
    "listing",
    ["sorted(glob.glob(folder + '/*.xml'))", "sorted(os.path.join(folder, n) for n in os.listdir(folder))"],
)  # fmt: skip
def test_annotations_that_a_script_lists_have_their_images(tmp_path, listing):
    source = f"""
    import xml.etree.ElementTree as ET
    from PIL import Image
    folder = "VOC2007/Annotations"
    files = {listing}
    boxes = ET.parse(files[3]).findall("object")
    assert len(files) > 99 and len(boxes) == 3 and boxes[0].find("name").text == "aeroplane"
    name = os.path.basename(files[3]).replace(".xml", ".jpg")
    assert Image.open(os.path.join("VOC2007/JPEGImages", name)).size == (16, 8)
    assert glob.glob("VOC2012/Other/*.xml") == []
    """
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8:20"])
