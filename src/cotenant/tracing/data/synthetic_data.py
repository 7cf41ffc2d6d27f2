"""Data that are not on this machine, made up: samples of a given shape, for the usual ways to load them.

A stand-in is `SHAPE[:DTYPE[:CLASSES]]`, e.g. `3x224x224`, `3x32x32:uint8:10` or `512:int64:32000`: one sample, the type
of its numbers, and how many classes (for whole numbers: how many values) there are. It answers where a file or data set
is missing, never where it is there: torchvision's data sets, timm's folders, `datasets.load_dataset` and
`load_from_disk` of Hugging Face, `numpy.load`, `torch.load`, images opened with Pillow. With several stand-ins, the
first whole-number one of one dimension is for text, the first one of three dimensions for images, the first of all for
everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cotenant.tracing import script_location
from cotenant.tracing.data.data_options import SyntheticSample, parse_sample
from cotenant.tracing.data.synthetic_hf_datasets import image_sample, synthesizing_load
from cotenant.tracing.data.synthetic_timm import patch_create_reader
from cotenant.tracing.data.synthetic_torchvision import blank_image, patch_coco, patch_dataset_class
from cotenant.tracing.patches import missing_weights
from cotenant.tracing.patches.import_hooks import when_imported

_FILES = (FileNotFoundError, NotADirectoryError)


def synthetic_tensor(stand_in: SyntheticSample) -> torch.Tensor:
    """Zeros, since values decide nothing; whole numbers count up, so that labels differ."""
    kind = getattr(torch, stand_in.dtype)
    if kind.is_floating_point or kind.is_complex:
        return torch.zeros(stand_in.shape, dtype=kind)
    count = torch.Size(stand_in.shape).numel()
    return (torch.arange(count) % min(stand_in.classes, 127)).reshape(stand_in.shape).to(kind)


def missing_data_hint(error: BaseException, given: Sequence[str]) -> str | None:
    """What to do about an error that says that data are not here."""
    if missing_weights.is_missing_model(error):
        return (
            "is it of a model that is not on this machine (a configuration, a tokenizer, weights)? fetch it once with "
            "`--allow-network`, or name a folder of this machine that has it"
        )
    words = f"{type(error).__name__}: {error} {script_location.failed_assertion(error)}".lower()
    looks = isinstance(error, (*_FILES, ConnectionError)) or any(
        each in words
        for each in (
            "not found",
            "offline",
            "couldn't find",
            "couldn't reach",
            "no such file",
            "doesn't exist",
            "out of reach",
            "path.exists(",
            "path.isdir(",
            "path.isfile(",
        )
    )
    if not looks or given or isinstance(error, NotImplementedError):
        return None
    return (
        "are these data that are not on this machine? make some up with `--synthetic-data SHAPE`, e.g. 3x224x224:uint8:1000"
    )


def install(texts: Sequence[str], recorder: Any) -> None:
    """Answer for missing data; without stand-ins nothing is changed."""
    if not texts:
        return
    known = [parse_sample(each) for each in texts]

    def told(what: str) -> None:
        recorder.warn(f"{what} is not on this machine; made up: {', '.join(texts)}")

    when_imported("torchvision.datasets", lambda module: _torchvision(module, image_sample(known), told))
    when_imported("timm.data.dataset", lambda module: patch_create_reader(module, image_sample(known), told))
    when_imported("pycocotools.coco", lambda module: patch_coco(module, image_sample(known), told))
    when_imported("datasets", lambda module: _hugging_face(module, known, told))
    when_imported("numpy", lambda module: _numpy(module, known[0], told))
    when_imported("PIL.Image", lambda module: _pillow(module, image_sample(known), told))
    load = torch.load

    def load_(f: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return load(f, *args, **kwargs)
        except _FILES:
            told(f"`{f}`")
            return synthetic_tensor(known[0])

    torch.load = load_


def _torchvision(module: Any, stand_in: SyntheticSample, told: Callable[[str], None]) -> None:
    """Data sets of files and of the web, through the script's own transforms."""
    for name in module.__all__:
        kind = getattr(module, name)
        if isinstance(kind, type) and name not in ("FakeData", "VisionDataset"):
            patch_dataset_class(kind, stand_in, told)


def _hugging_face(module: Any, known: Sequence[SyntheticSample], told: Callable[[str], None]) -> None:
    """A dictionary of splits, each with pictures or texts."""
    for name in ("load_dataset", "load_from_disk"):
        setattr(module, name, synthesizing_load(getattr(module, name), module, known, told))


def _numpy(module: Any, stand_in: SyntheticSample, told: Callable[[str], None]) -> None:
    load = module.load

    def load_(file: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return load(file, *args, **kwargs)
        except _FILES:
            told(f"`{file}`")
            return synthetic_tensor(stand_in).numpy()

    module.load = load_


def _pillow(module: Any, stand_in: SyntheticSample, told: Callable[[str], None]) -> None:
    open_image = module.open

    def open_(fp: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return open_image(fp, *args, **kwargs)
        except _FILES:
            told("an image named by the script")
            return blank_image(stand_in)

    module.open = open_
