"""Files of images, and of what belongs to them: optical flow, maps of disparity or depth, arrays.

A module of its own: lists of records must know which files are none, and finding files is another matter.
Sources: vision.middlebury.edu/flow, flowIO.cpp (`.flo`); Paul Debevec, PFM Portable FloatMap Image Format (`.pfm`).
"""

from __future__ import annotations

import importlib
import io
import struct

from cotenant.tracing.data.data_options import SyntheticSample, image_size
from cotenant.tracing.data.images.synthetic_torchvision import image_bytes, synthetic_tensor

FORMATS = {
    ".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".bmp": "BMP", ".tif": "TIFF", ".tiff": "TIFF", ".webp": "WEBP",
    ".ppm": "PPM", ".gif": "GIF",
}  # fmt: skip
"""Formats of Pillow."""
FLOW, FLOAT_MAP, ARRAY = ".flo", ".pfm", ".npy"
IMAGES = frozenset({*FORMATS, FLOAT_MAP})
LISTED = frozenset({*IMAGES, FLOW, ARRAY})
"""Suffixes of files that are made when they are opened, and of those that are made for a listing."""
_FLOW_MAGIC = 202021.25
_FLOAT_BYTES = 4
_LITTLE_ENDIAN = b"\x00\x00\x80\x3f"  # 1.0: a disparity by which scripts divide


def file_bytes(sample: SyntheticSample, suffix: str) -> bytes:
    """What a file of one of `LISTED` holds."""
    _, height, width = image_size(sample)
    if suffix == FLOW:
        return struct.pack("<fii", _FLOW_MAGIC, width, height) + bytes(2 * _FLOAT_BYTES * width * height)
    if suffix == FLOAT_MAP:
        return f"Pf\n{width} {height}\n-1.0\n".encode() + _LITTLE_ENDIAN * (width * height)
    if suffix == ARRAY:
        content = io.BytesIO()
        importlib.import_module("numpy").save(content, synthetic_tensor(sample).numpy())
        return content.getvalue()
    return image_bytes(sample, FORMATS[suffix])
