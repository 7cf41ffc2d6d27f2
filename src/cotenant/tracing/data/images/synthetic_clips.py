"""Clips of videos in data sets of torchvision: Kinetics, UCF101 and HMDB51, whose items the script's class may read.

A module of its own: these data sets read `video_clips`, as samplers of clips do, and not an image for each item.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

_VIDEOS, _FRAMES, _RATE = 1000, 300, 30
"""Videos of a data set; frames of one, unless a clip needs more, and its frames a second."""
_FRAME = "_cotenant_frame"


def has_clips(dataset: Any, sets: Any) -> bool:
    """Whether the items of a data set of torchvision are clips."""
    kinds = (getattr(sets, name, None) for name in ("Kinetics", "Kinetics400", "UCF101", "HMDB51"))
    return isinstance(dataset, tuple(kind for kind in kinds if kind is not None))


def clip_attributes(
    dataset: Any, sets: Any, classes: int, frame: tuple[int, int, int], arguments: dict[str, Any]
) -> dict[str, Any]:
    """What such a data set has: videos of all classes, and their clips by the `arguments` of its construction.

    `frame`: its channels, height and width.
    """
    length, rate = arguments["frames_per_clip"], arguments["frame_rate"] or _RATE
    frames = max(_FRAMES, math.ceil(2 * length * _RATE / rate))
    labels = [index % classes for index in range(_VIDEOS)]
    paths = [f"{dataset.root}/{label}/{index}.mp4" for index, label in enumerate(labels)]
    known = {"video_paths": paths, "video_pts": [torch.arange(frames)] * _VIDEOS, "video_fps": [_RATE] * _VIDEOS}
    clips = sets.video_utils.VideoClips(paths, length, arguments["step_between_clips"], rate, known)
    clips.output_format = arguments.get("output_format", "THWC")  # torchvision 0.10 and older have no other
    setattr(clips, _FRAME, frame)
    samples = list(zip(paths, labels, strict=True))
    return {
        "samples": samples,
        "indices": range(_VIDEOS),
        "video_clips": clips,
        "full_video_clips": clips,
        "transform": arguments["transform"],  # set after the files are listed
    }


def reading_clips(original: Any) -> Any:
    """`VideoClips.get_clip`, which has a blank clip of a synthetic data set."""

    @functools.wraps(original)
    def get_clip(self: Any, idx: int) -> Any:
        frame = getattr(self, _FRAME, None)
        if frame is None:
            return original(self, idx)
        channels, height, width = frame
        size = (channels, height, width) if self.output_format == "TCHW" else (height, width, channels)
        video = torch.zeros(self.num_frames, *size, dtype=torch.uint8)
        return video, torch.empty(1, 0), {"video_fps": _RATE}, self.get_clip_location(idx)[0]

    return get_clip
