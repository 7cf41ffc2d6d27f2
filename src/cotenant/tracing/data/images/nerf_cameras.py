"""Lists of cameras of radiance fields that are not on this machine: `transforms_train.json` and the like.

A list has the angle of view and, of each image, its file and the camera's pose. There are as many images as in the
synthetic scenes of NeRF, whose lists name files without a suffix: 100 for training, 100 for validation, 200 to test.
`transforms.json`, as instant-ngp has it, names files with their suffix, and also the focal length. `poses_bounds.npy`,
of scenes that were photographed, has a pose, a size and two depths for each file of `images` and its reduced copies.
Source: bmild/nerf, load_blender.py and load_llff.py; NVlabs/instant-ngp, docs/nerf_dataset_tips.md.
"""

from __future__ import annotations

import importlib
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from cotenant.tracing.data.data_options import SyntheticSample, image_size
from cotenant.tracing.sandbox.overlay import Overlay

_LIST = re.compile(r"transforms(?:_(train|val|test))?\.json$")
_IMAGES, _TEST_IMAGES, _PHOTOS = 100, 200, 20
_PHOTO_LIST = "poses_bounds.npy"
_PHOTO_FOLDERS = ("images", "images_2", "images_4", "images_8")
_AXES = ((0.0, 1.0, 0.0), (-1.0, 0.0, 0.0), (0.0, 0.0, 1.0))  # rows; columns point down, right and back
_DEPTHS = (1.0, 10.0)
_ANGLE, _DISTANCE = 0.6911, 4.0  # of the synthetic scenes


def is_camera_list(path: str) -> bool:
    """Whether a path is a list of cameras."""
    return _LIST.match(Path(path).name) is not None or is_photo_list(path)


def is_photo_list(path: str) -> bool:
    """Whether a path is the array of cameras of a scene that was photographed."""
    return Path(path).name == _PHOTO_LIST


def make(
    full: str, overlay: Overlay, image: SyntheticSample, make_images: Callable[[str, str, Sequence[str]], bool]
) -> bool:
    """Make the list `full` in the overlay, and its images."""
    if is_photo_list(full):
        return _make_photos(full, overlay, image, make_images)
    found = _LIST.match(Path(full).name)
    part = found[1] if found is not None else None
    folder, suffix = (part, "") if part is not None else ("images", ".png")
    names = [f"r_{index}" for index in range(_TEST_IMAGES if part == "test" else _IMAGES)]
    if not make_images(str(Path(full).parent / folder), ".png", names):
        return False
    _, height, width = image_size(image)
    focal = 0.5 * width / math.tan(0.5 * _ANGLE)
    size = {"fl_x": focal, "fl_y": focal, "cx": width / 2, "cy": height / 2, "w": width, "h": height}
    frames = [
        {"file_path": f"./{folder}/{name}{suffix}", "rotation": 0.0126, "transform_matrix": _pose(at / len(names))}
        for at, name in enumerate(names)
    ]
    overlay.new_file(full).write_text(
        json.dumps({"camera_angle_x": _ANGLE, **({} if part else size), "frames": frames})
    )
    return True


def _make_photos(
    full: str, overlay: Overlay, image: SyntheticSample, make_images: Callable[[str, str, Sequence[str]], bool]
) -> bool:  # fmt: skip
    folder, names = Path(full).parent, [f"IMG_{index:04d}" for index in range(_PHOTOS)]
    if not all(make_images(str(folder / name), ".jpg", names) for name in _PHOTO_FOLDERS):
        return False
    numpy = importlib.import_module("numpy")
    _, height, width = image_size(image)
    size = (height, width, 0.8 * width)  # and the focal length
    rows = []
    for index in range(_PHOTOS):
        turn = 2 * math.pi * index / _PHOTOS
        place = (0.1 * math.cos(turn), 0.1 * math.sin(turn), 0.0)
        pose = [(*axes, at, extent) for axes, at, extent in zip(_AXES, place, size, strict=True)]
        rows.append([*(number for row in pose for number in row), *_DEPTHS])
    numpy.save(overlay.above(full), numpy.array(rows))
    return True


def _pose(turn: float) -> list[list[float]]:
    """A camera on a circle around the scene, which it looks at: its axes and its place, in columns."""
    cosine, sine = math.cos(2 * math.pi * turn), math.sin(2 * math.pi * turn)
    return [
        [-sine, 0.0, cosine, _DISTANCE * cosine],
        [cosine, 0.0, sine, _DISTANCE * sine],
        [0.0, 1.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 1.0],
    ]
