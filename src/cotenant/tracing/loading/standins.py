"""Data that are not on this machine, made up: samples of a given shape, for the usual ways to load them.

A stand-in is `SHAPE[:DTYPE[:CLASSES]]`, e.g. `3x224x224`, `3x32x32:uint8:10` or `512:int64:32000`: one sample, the type
of its numbers, and how many classes (for whole numbers: how many values) there are. It answers where a file or data set
is missing, never where it is there: torchvision's data sets, `datasets.load_dataset` and `load_from_disk` of Hugging
Face, `numpy.load`, `torch.load`, images opened with Pillow. With several stand-ins, the first whole-number one of one
dimension is for text, the first one of three dimensions for images, the first of all for everything else.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cotenant.core.errors import UsageError
from cotenant.tracing.libraries.after_import import when_imported

SAMPLES = 50_000
_CLASSES = 10
_FORM = re.compile(r"(\d+(?:x\d+)*)(?::([a-z]+\d+))?(?::(\d+))?")
_FILES = (FileNotFoundError, NotADirectoryError)


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """One sample: its shape, the name of its type in torch, and how many classes or values there are."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    classes: int = _CLASSES

    def sample(self) -> torch.Tensor:
        """Zeros, since values decide nothing; whole numbers count up, so that labels differ."""
        kind = getattr(torch, self.dtype)
        if kind.is_floating_point:
            return torch.zeros(self.shape, dtype=kind)
        count = torch.Size(self.shape).numel()
        return (torch.arange(count) % max(1, min(self.classes, 127))).reshape(self.shape).to(kind)


def parse(text: str) -> StandIn:
    """The stand-in that `text` describes.

    Raises:
        UsageError: it describes none.
    """
    match = _FORM.fullmatch(text.strip())
    dtype = match.group(2) or "float32" if match else ""
    if match is None or not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise UsageError(
            f"`{text}` is no stand-in for data", hint="write SHAPE[:DTYPE[:CLASSES]], e.g. `3x224x224:uint8:1000`"
        )
    shape = tuple(int(each) for each in match.group(1).split("x"))
    return StandIn(shape=shape, dtype=dtype, classes=int(match.group(3) or _CLASSES))


def missing_hint(error: BaseException, given: Sequence[str]) -> str | None:
    """What to do about an error that says that data are not here."""
    words = f"{type(error).__name__}: {error}".lower()
    looks = isinstance(error, (*_FILES, ConnectionError)) or any(
        each in words
        for each in ("not found", "offline", "couldn't find", "couldn't reach", "no such file", "doesn't exist")
    )
    if not looks or given or isinstance(error, NotImplementedError):
        return None
    return (
        "are these data that are not on this machine? make some up with `--stand-in SHAPE`, e.g. 3x224x224:uint8:1000"
    )


def install(texts: Sequence[str], recorder: Any) -> None:
    """Answer for missing data; without stand-ins nothing is changed."""
    if not texts:
        return
    known = [parse(each) for each in texts]

    def told(what: str) -> None:
        recorder.warn(f"{what} is not on this machine; made up: {', '.join(texts)}")

    when_imported("torchvision.datasets", lambda module: _torchvision(module, image_of(known), told))
    when_imported("datasets", lambda module: _hugging_face(module, known, told))
    when_imported("numpy", lambda module: _numpy(module, known[0], told))
    when_imported("PIL.Image", lambda module: _pillow(module, image_of(known), told))
    load = torch.load

    def load_(f: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return load(f, *args, **kwargs)
        except _FILES:
            told(f"`{f}`")
            return known[0].sample()

    torch.load = load_


def image_of(known: Sequence[StandIn]) -> StandIn:
    """The one for images."""
    return next((each for each in known if len(each.shape) == 3), known[0])


def text_of(known: Sequence[StandIn]) -> StandIn | None:
    """The one for tokens."""
    whole = (each for each in known if len(each.shape) == 1 and not getattr(torch, each.dtype).is_floating_point)
    return next(whole, None)


def _picture(stand_in: StandIn) -> Any:
    """A blank image of the stand-in's size, in color if it has three channels."""
    module = importlib.import_module("PIL.Image")
    channels, height, width = stand_in.shape if len(stand_in.shape) == 3 else (3, *stand_in.shape[-2:])
    return module.new("RGB" if channels == 3 else "L", (width, height))


def _torchvision(module: Any, stand_in: StandIn, told: Callable[[str], None]) -> None:
    """Data sets of files and of the web, through the script's own transforms."""
    for name in module.__all__:
        kind = getattr(module, name)
        if isinstance(kind, type) and name not in ("FakeData", "VisionDataset"):
            _replace_where_missing(kind, stand_in, told)


def _replace_where_missing(kind: Any, stand_in: StandIn, told: Callable[[str], None]) -> None:
    begin = kind.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if "_beginning" in self.__dict__:  # called by the one of a subclass, which answers
            begin(self, *args, **kwargs)
            return
        self.__dict__["_beginning"] = True
        try:
            begin(self, *args, **kwargs)
        except (RuntimeError, OSError):  # each data set has its own words for it
            told(f"the data of `{type(self).__name__}`")
            _make_up(self, stand_in, args, kwargs)
        finally:
            del self.__dict__["_beginning"]

    kind.__init__ = init


def _make_up(dataset: Any, stand_in: StandIn, args: Any, kwargs: Any) -> None:
    """Blank images instead of a data set's own, through its transforms."""
    dataset.transform = kwargs.get("transform", next((each for each in args[1:] if callable(each)), None))
    dataset.target_transform = kwargs.get("target_transform")
    dataset.classes = [str(each) for each in range(stand_in.classes)]
    dataset.class_to_idx = {each: index for index, each in enumerate(dataset.classes)}
    dataset.targets = [index % stand_in.classes for index in range(SAMPLES)]

    def get(self: Any, index: int) -> Any:
        image, label = _picture(stand_in), int(index) % stand_in.classes
        image = self.transform(image) if self.transform is not None else image
        return image, self.target_transform(label) if self.target_transform is not None else label

    own = type(dataset)
    dataset.__class__ = type(own.__name__, (own,), {"__len__": lambda self: SAMPLES, "__getitem__": get})


def _hugging_face(module: Any, known: Sequence[StandIn], told: Callable[[str], None]) -> None:
    """A dictionary of splits, each with pictures or texts under the usual names of columns."""
    for name in ("load_dataset", "load_from_disk"):
        setattr(module, name, _loading(getattr(module, name), module, known, told))


def _loading(load: Any, module: Any, known: Sequence[StandIn], told: Callable[[str], None]) -> Any:
    def load_(*args: Any, **kwargs: Any) -> Any:
        try:
            return load(*args, **kwargs)
        except Exception as error:  # each version of the library has errors of its own for absent data
            if type(error) in (TypeError, AttributeError):
                raise
            told(f"the data set `{args[0] if args else kwargs.get('path', '')}`")
            made = module.Dataset.from_dict(columns(known))
            split = kwargs.get("split")
            if split is not None:
                return made
            return module.DatasetDict(dict.fromkeys(("train", "validation", "test"), made))

    return load_


def columns(known: Sequence[StandIn], count: int = 1000) -> dict[str, list[Any]]:
    """A table under the names that scripts look for."""
    first = known[0]
    labels = [index % first.classes for index in range(count)]
    if len(image_of(known).shape) == 3:
        picture = _picture(image_of(known))
        return {"image": [picture] * count, "img": [picture] * count, "label": labels}
    tokens = text_of(known)
    length = tokens.shape[0] if tokens is not None else first.shape[0]
    texts = [" ".join(["word"] * length)] * count
    return {"text": texts, "sentence": texts, "label": labels}


def _numpy(module: Any, stand_in: StandIn, told: Callable[[str], None]) -> None:
    load = module.load

    def load_(file: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return load(file, *args, **kwargs)
        except _FILES:
            told(f"`{file}`")
            return stand_in.sample().numpy()

    module.load = load_


def _pillow(module: Any, stand_in: StandIn, told: Callable[[str], None]) -> None:
    open_image = module.open

    def open_(fp: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return open_image(fp, *args, **kwargs)
        except _FILES:
            told("images named by the script")
            return _picture(stand_in)

    module.open = open_
