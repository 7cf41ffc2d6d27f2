"""Files of MNIST that a script reads itself and that are not on this machine, such as `train-images-idx3-ubyte.gz`.

Their form is known by their names: a header of big-endian numbers, then a byte for each pixel or label. They have as
many images as MNIST, since scripts put all of them on the GPU. Images have the size of a gray synthetic sample, else
that of MNIST.
Source: the format of IDX files, http://yann.lecun.com/exdb/mnist.
"""

from __future__ import annotations

import gzip
import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from cotenant.tracing.data.data_options import SyntheticSample
from cotenant.tracing.data.images.synthetic_torchvision import blank_image
from cotenant.tracing.data.sample_paths import sample_at, samples_for_all
from cotenant.tracing.sandbox.overlay import Overlay

_NAME = re.compile(r"(?:.*-)?(?P<set>train|t10k|test)-(?P<kind>images[-.]idx3|labels[-.]idx1)-ubyte(?:\.gz)?")
_TRAIN, _TEST = 60_000, 10_000
_SIZE = (28, 28)
_IMAGES, _LABELS = 2051, 2049  # magic numbers: unsigned bytes in three dimensions, in one
_MAX_LABELS = 256


class IdxFiles:
    """Makes such files. `warn`: is called with their names."""

    def __init__(self, samples: Sequence[SyntheticSample], overlay: Overlay, warn: Callable[[str], None]) -> None:
        common = samples_for_all(samples)
        self._samples = samples
        self._sample = next((sample for sample in common if _size(sample) is not None), common[0] if common else None)
        self._overlay = overlay
        self._warn = warn

    def make(self, path: str) -> bool:
        """Make the file `path` that is missing; whether it was made."""
        full, named = self._overlay.absent(path), _NAME.fullmatch(Path(path).name)
        sample = sample_at(path, self._samples, self._sample)
        if full is None or named is None or sample is None:
            return False
        count = _TRAIN if named["set"] == "train" else _TEST
        height, width = _size(sample) or _SIZE
        content = _images(count, height, width) if "images" in named["kind"] else _labels(count, sample.classes)
        self._overlay.new_file(full).write_bytes(
            gzip.compress(content, compresslevel=1) if path.endswith(".gz") else content
        )
        self._warn(f"`{path}`, a file of MNIST,")
        return True


def _size(sample: SyntheticSample) -> tuple[int, int] | None:
    """Height and width of a gray image; None: the sample is none."""
    return (sample.shape[1], sample.shape[2]) if sample.is_image and sample.shape[0] == 1 else None


def _images(count: int, height: int, width: int) -> bytes:
    pixels = blank_image(SyntheticSample(shape=(1, height, width), dtype="uint8")).tobytes()
    return struct.pack(">4i", _IMAGES, count, height, width) + count * pixels


def _labels(count: int, classes: int) -> bytes:
    return struct.pack(">2i", _LABELS, count) + bytes(index % min(classes, _MAX_LABELS) for index in range(count))
