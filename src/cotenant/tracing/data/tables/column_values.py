"""Values of synthetic Hugging Face tables, by what the name of their column says: texts, chats, images, labels.

And the columns of a time series.
"""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cotenant.tracing.data.data_options import (
    CLASSES,
    SyntheticSample,
    first_image,
    first_text,
    recordings_and_rows,
)
from cotenant.tracing.data.images.synthetic_torchvision import blank_image
from cotenant.tracing.script_location import calling_frame

_WORDS_BESIDE_OTHER_DATA = 16  # of a caption, or a transcription
SAMPLING_RATE = 16_000
"""Of recordings, in Hz."""
TIME_STEPS = 60_000
"""Of a time series: more than the quarters of an hour of 20 months, by which studies cut their tables."""
BOX_CLASSES = 80
"""Classes of objects with boxes, as of COCO."""
_LAST_WORDS = (
    "word", "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school",
    "state", "family", "group", "country", "part", "place", "case", "week", "work", "question", "night", "point",
    "home", "water", "room", "mother", "money",
)  # fmt: skip
_NUMBERS_OF_MEDIA = {"id", "idx", "index", "width", "height"}
"""Last words of columns that say something about an image, or a recording, and do not hold one: `image_id`."""
_IDENTIFIERS = {"id", "idx", "index", "guid"}
_CAMEL_CASE = re.compile(r"(?<=[a-z])(?=[A-Z])")
"""Between words of a name, as MovieLens writes `userId`."""
_LISTS = {"chat", "turns", "answers", "words"}
"""Kinds of columns with lists. `conversation_id` says which list, and scripts look it up in dicts."""
_INPUTS = {"input", "inputs", "source"}
_KINDS = (
    ("image", {"image", "images", "img", "pixel", "pixels", "picture", "photo", "mask", "annotation", "conditioning"}),
    ("audio", {"audio", "speech", "wav", "waveform"}),
    ("chat", {"messages", "conversations", "conversation"}),
    ("turns", {"texts"}),
    ("answers", {"answers"}),
    ("label", {"label", "labels", "class", "target", "fine", "coarse", "category"}),
    ("number", {"score", "similarity", "stars", "rating", "reward", "price"}),
    ("count", {"num", "count", "duration", "difficulty"}),
    ("objects", {"objects"}),
    ("row", _IDENTIFIERS),
    ("tags", {"tags", "tag", "ner", "pos", "chunk"}),
    ("words", {"tokens", "words"}),
)


@dataclass(frozen=True, slots=True)
class ColumnMaker:
    """Values for columns, of the given samples: `image` for images, `text` for tokens, `audio` for waveforms."""

    image: SyntheticSample | None
    text: SyntheticSample | None
    audio: SyntheticSample | None

    @classmethod
    def of(cls, samples: Sequence[SyntheticSample]) -> ColumnMaker:
        """The first sample that suits each kind of data."""
        audio = next(iter(recordings_and_rows(samples)), None)
        return cls(first_image(samples), first_text(samples), audio)

    def value(self, name: str, row: int = 0) -> Any:
        """The value of the column `name` in a row."""
        kind = self._kind(name)
        if kind == "image" and self.image is not None:
            return blank_image(self.image)
        if kind == "audio" and self.audio is not None:
            array = torch.zeros(self.audio.shape[0]).numpy()  # as `datasets.Audio` decodes a file
            return {"array": array, "sampling_rate": SAMPLING_RATE, "path": "0.wav"}
        if kind == "chat":
            content = self.words(2, row)
            return [{"role": "user", "content": content}, {"role": "assistant", "content": content}]
        if kind == "answers":
            return {"text": ["word"], "answer_start": [0]}
        if kind == "label":
            return 0
        if kind == "class numbers":
            return {str(label): label for label in range(CLASSES)}
        if kind == "objects" and self.image is not None:  # one, in COCO's form: left, top, width, height
            *_, height, width = self.image.shape
            box = [0.0, 0.0, width / 2, height / 2]
            of_class = {part: [0] for part in ("category", "categories", "label")}
            return {"id": [0], "area": [box[2] * box[3]], "bbox": [box], **of_class}
        if kind == "turns" and self.image is not None:  # HuggingFaceM4/the_cauldron, `texts`
            return [{"user": self.words(2, row), "assistant": self.words(2, row)}]
        if kind in ("number", "count"):
            return 1.0 if kind == "number" else 1
        if kind in ("words", "tags"):  # of each word, as in CoNLL's sets of named entities
            words = self.words(row=row).split()
            return words if kind == "words" else [index % CLASSES for index in range(len(words))]
        return "0" if kind == "row" else self.words(row=row)

    def column(self, name: str, rows: int) -> list[Any]:
        """A column of so many values; labels count up to the number of classes."""
        kind = self._kind(name)
        if kind == "label":
            classes = self.image.classes if self.image is not None else CLASSES
            return [row % classes for row in range(rows)]
        if kind in ("text", "chat", "turns", "words"):
            return [self.value(name, row) for row in range(rows)]
        return [self.value(name)] * rows

    def _kind(self, name: str) -> str:
        """As `kind_of`. The target beside a text that the same function reads is the text to write, no class."""
        if name == "target" and self.image is None and not _INPUTS.isdisjoint(calling_frame().f_code.co_consts):
            return "text"
        return kind_of(name)

    def of_answer(self, name: str, row: int) -> Any:
        """The value of a column beside an answer: a text that shares the sample's words with another.

        Labels say whether an answer, or each step of one, is good: TRL's KTO trainer compares by `is True`.
        """
        step, is_good = self.words(4, row), row % 2 == 0
        own: dict[str, Any] = {"completions": [step, step], "labels": [is_good, is_good], "label": is_good}
        return own[name] if name in own else self.words(2, row)

    def words(self, parts: int = 1, row: int = 0) -> str:
        """Text of as many words as the sample of tokens has numbers, divided by `parts`."""
        count = self.text.shape[0] if self.text is not None else _WORDS_BESIDE_OTHER_DATA
        return words_of_row(max(1, count // parts), row)


def words_of_row(count: int, row: int) -> str:
    """Text of `count` words, of which the last three distinguish rows: some batches may not repeat a text.

    Each word is one token of common tokenizers. Of one word there are 30 texts, of two 900, of more 27,000.
    """
    digits = []
    for _ in range(min(3, count)):
        row, digit = divmod(row, len(_LAST_WORDS))
        digits.append(_LAST_WORDS[digit])
    return _first_words(count - len(digits)) + " ".join(reversed(digits))


@functools.lru_cache(maxsize=16)
def _first_words(count: int) -> str:
    return "word " * count


def kind_of(name: str) -> str:
    """What a column holds, by the words of its name; `text` where they say nothing."""
    *_, last = ordered = re.split(r"[^a-z]+", _CAMEL_CASE.sub("_", name).lower())
    words = set(ordered)
    if ordered[-2:] == ["to", "id"]:
        return "class numbers"
    if last in _NUMBERS_OF_MEDIA and words & {"image", "img", "audio"}:
        return "count"
    kind = next((kind for kind, known in _KINDS if words & known), "text")
    return "row" if last in _IDENTIFIERS and kind in _LISTS else kind


def number_columns(count: int) -> dict[str, list[Any]]:
    """A time series: dates, so many columns of numbers, and the last one's name as in the benchmarks."""
    hours = [float(row % 24) for row in range(TIME_STEPS)]
    return {"date": _hours_since_2016(), **{str(column): hours for column in range(count - 1)}, "OT": hours}


@functools.cache
def _hours_since_2016() -> list[str]:
    # Formatted day by day: `strftime` of every hour takes 0.15 s.
    first = datetime.date(2016, 1, 1)
    days = [(first + datetime.timedelta(days=day)).isoformat() for day in range(-(-TIME_STEPS // 24))]
    return [f"{day} {hour:02}:00:00" for day in days for hour in range(24)][:TIME_STEPS]
