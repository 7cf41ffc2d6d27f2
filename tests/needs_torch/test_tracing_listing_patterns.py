"""Suffixes, patterns and numbers of files that a script lists by itself, made with `--synthetic-data`."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from traced_scripts import trained

IMAGES = pytest.mark.skipif(importlib.util.find_spec("PIL") is None, reason="needs Pillow")


@IMAGES
def test_a_suffix_that_the_calling_module_replaces_is_that_of_the_files(tmp_path):
    listing = "class Base:\n    def __init__(self):\n        self.masks = list(Path('data/masks').iterdir())\n"
    (tmp_path / "listing.py").write_text(f"from pathlib import Path\n{listing}")
    source = """
    import json
    from listing import Base
    class Road(Base):
        def __init__(self):
            super().__init__()
            self.rows = [self.read(str(path)) for path in self.masks]
        def read(self, path):
            with open(path.replace("masks", "labels").replace(".png", ".json")) as file:
                label = json.load(file)
            return self.boxes(label["frames"][0]["objects"])
        def boxes(self, objects):
            return [(item["category"], float(item["box"]["x1"])) for item in objects]
    rows = Road().rows
    assert len(rows) >= 128 and len(rows[0]) == 3 and rows[0][0][1] == 0.5, rows[0]
    """
    trained(tmp_path, source, synthetic_data=["3x64x64:uint8:7"])


@IMAGES
def test_folders_with_sets_in_a_pattern_have_files(tmp_path):
    source = """
    found = glob.glob("data/train/*_sync/image_0[2,3]/*.png")
    assert len(found) >= 128 and os.path.dirname(found[0]) == "data/train/0_sync/image_02", found[:2]
    """
    trained(tmp_path, source, synthetic_data=["3x64x64:uint8:7"])


def test_a_whole_model_that_is_missing_has_weights_that_load(tmp_path):
    source = 'model.load_state_dict(torch.load("checkpoint_best.pth.tar")["model"].state_dict())'
    trained(tmp_path, source, synthetic_data=["3x8x16:uint8"])


@IMAGES
def test_of_large_images_there_are_few(tmp_path):
    source = "assert len(os.listdir('data/train')) == 32"
    trained(tmp_path, source, synthetic_data=["3x1200x1600:uint8"])
