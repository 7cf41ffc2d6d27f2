"""Videos that a script reads and that are not on this machine: by OpenCV, decord and torchvision.

A synthetic sample of an image is a frame of each video; a video has as many frames as a clip of ten seconds. A listed
folder has files in place of videos, as of recordings.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any

from cotenant.tracing.data import placeholders
from cotenant.tracing.data.data_options import SyntheticSample, first_image, image_size
from cotenant.tracing.data.sample_paths import sample_at
from cotenant.tracing.patches.registry import Patch, Phase

_FRAMES, _RATE = 300, 30.0
_REASON = "It raises, or reads nothing, where the file is missing."
_COUNT, _WIDTH, _HEIGHT, _FPS, _POSITION = 7, 3, 4, 5, 1
"""Source: opencv/modules/videoio/include/opencv2/videoio.hpp, `VideoCaptureProperties`."""


def patches(samples: Sequence[SyntheticSample], warn: Callable[[str], None]) -> list[Patch]:
    """Readers of videos; none without images."""
    image = first_image(samples)
    if image is None:
        return []
    return [
        Patch(
            target=target, phase=Phase.DATA, wraps=True, reason=_REASON, source=source,
            replacement=functools.partial(_reading, functools.partial(make, samples, image), warn),
        )
        for target, make, source in (
            ("cv2:VideoCapture", _Capture, "opencv/modules/videoio/src/cap.cpp, `VideoCapture`"),
            ("decord:VideoReader", _Reader, "decord/video_reader.py, `VideoReader`"),
            ("torchvision.io:read_video", _read_video, "torchvision/io/video.py, `read_video`"),
        )
    ]  # fmt: skip


def _reading(make: Callable[..., Any], warn: Callable[[str], None], original: Any) -> Any:
    def read(file: Any, *args: Any, **kwargs: Any) -> Any:
        is_there = not isinstance(file, (str, os.PathLike)) or os.path.exists(file)  # noqa: PTH110 - of both kinds
        if is_there and not placeholders.is_placeholder(file):
            return original(file, *args, **kwargs)
        warn("a video that the script reads")
        return make(file, *args, **kwargs)

    return read


def _frame(samples: Sequence[SyntheticSample], image: SyntheticSample, file: Any, *sizes: int) -> Any:
    """Height x width x 3 bytes; `sizes`: width and height that the reader asks for, or -1."""
    _, height, width = image_size(sample_at(file, samples, image))
    wanted = [size if size > 0 else own for size, own in zip(sizes or (-1, -1), (width, height), strict=True)]
    return importlib.import_module("numpy").zeros((wanted[1], wanted[0], 3), "uint8")


class _Capture:
    """A video as OpenCV reads it, frame by frame."""

    def __init__(self, samples: Any, image: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        self._image, self._at = _frame(samples, image, file), 0

    def isOpened(self) -> bool:  # noqa: N802 - of OpenCV
        return True

    def grab(self) -> bool:
        self._at += 1
        return self._at <= _FRAMES

    def retrieve(self, *args: Any) -> tuple[bool, Any]:
        return (True, self._image.copy()) if self._at <= _FRAMES else (False, None)

    def read(self, *args: Any) -> tuple[bool, Any]:
        self.grab()
        return self.retrieve()

    def get(self, name: int) -> float:
        """A property by its number; 0 for one that is not known, as of OpenCV."""
        height, width, _ = self._image.shape
        known = {_COUNT: _FRAMES, _WIDTH: width, _HEIGHT: height, _FPS: _RATE, _POSITION: self._at}
        return float(known.get(name, 0))

    def set(self, name: int, value: float) -> bool:
        """Move to a frame; other properties stay."""
        self._at = int(value) if name == _POSITION else self._at
        return True

    def release(self) -> None:
        """Nothing is open."""


class _Reader:
    """A video as decord reads it, by numbers of frames."""

    def __init__(
        self, samples: Any, image: Any, file: Any, ctx: Any = None, width: int = -1, height: int = -1,
        *args: Any, **kwargs: Any,
    ) -> None:  # fmt: skip
        self._image = _frame(samples, image, file, width, height)

    def __len__(self) -> int:
        return _FRAMES

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.get_batch(range(*index.indices(_FRAMES)))
        if not -_FRAMES <= index < _FRAMES:
            raise IndexError(f"Out of bound indices: {index}")
        return _as_decords(self._image.copy())

    def get_batch(self, indices: Any) -> Any:
        return _as_decords(importlib.import_module("numpy").stack([self._image] * len(indices)))

    def get_avg_fps(self) -> float:
        return _RATE

    def seek(self, position: int) -> None:
        """Frames are all alike."""

    seek_accurate = seek


def _as_decords(array: Any) -> Any:
    """As the bridge that the script has set gives it: an array of decord's own, or a tensor."""
    bridge = importlib.import_module("decord.bridge")
    return bridge.bridge_out(importlib.import_module("decord.ndarray").array(array))


def _read_video(samples: Any, image: Any, file: Any, *args: Any, output_format: str = "THWC", **kwargs: Any) -> Any:
    torch = importlib.import_module("torch")
    frames = torch.from_numpy(_frame(samples, image, file)).expand(_FRAMES, -1, -1, -1)
    made = frames.permute(0, 3, 1, 2) if output_format == "TCHW" else frames
    return made, torch.zeros(1, 0), {"video_fps": _RATE}
