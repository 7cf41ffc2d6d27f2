"""Texts, and files of tokens (`.bin`) as nanoGPT maps them and llm.c's readers find them, that are not on this machine.

nanoGPT maps a file of 16-bit tokens. Readers of llm.c's format find files by a pattern, and check a header of 256
integers; some cut batches where a text begins. Tokens are zeros, of which no page exists until it is read, but for the
end-of-text token that begins a text, in the first part of such a file.
Source: karpathy/nanoGPT, train.py, `get_batch`; karpathy/llm.c, dev/data/data_common.py, `write_datafile`, and
dev/data/fineweb.py, `tokenize_gpt2`.
"""

from __future__ import annotations

import functools
import os
import string
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cotenant.tracing import script_location
from cotenant.tracing.data.data_options import SyntheticSample, first_text
from cotenant.tracing.data.sample_paths import MISSING_FILE, samples_for_all
from cotenant.tracing.patches.registry import Patch, Phase

TEXT_SUFFIXES = (".txt", ".tokens", ".raw", ".text")
TOKENS = 100_000_000
WORDS = 200_000
_WORDS_OF_LINE = 20
_SIGNS = string.punctuation + string.digits
_SUFFIX = ".bin"
_MAGIC, _VERSION, _HEADER_INTEGERS = 20240520, 1, 256
_SEPARATED_TOKENS = 16_000_000
"""So many tokens of a file are separated into texts: the batches of some steps on several GPUs."""
_GPT2_END_OF_TEXT, _GPT2_PADDED = 50256, 50304
"""GPT-2's end-of-text token, the last of its vocabulary, and the size that models round the vocabulary up to."""


def patches(samples: Sequence[SyntheticSample], warn: Callable[[str], None]) -> list[Patch]:
    """How such files are found and read.

    `samples`: for no path in particular. `warn`: is called with the name of what was replaced.
    """
    make_file = functools.partial(_make_file, first_text(samples))
    common: dict[str, Any] = {"phase": Phase.DATA, "wraps": True, "reason": "The files are missing."}
    return [
        Patch(
            target="numpy:memmap.__new__", replacement=functools.partial(_mapping_zeros, warn),
            source="numpy/_core/memmap.py, `memmap.__new__`", **common,
        ),
        Patch(
            target="numpy:fromfile", replacement=functools.partial(_reading_zeros, warn),
            source="numpy/_core/src/multiarray/multiarraymodule.c, `array_fromfile`", **common,
        ),
        Patch(
            target="glob:glob", replacement=functools.partial(_finding, make_file, warn),
            source="Lib/glob.py, `glob`", **common,
        ),
        Patch(
            target="pathlib:Path.glob", replacement=functools.partial(_finding_below, make_file, warn),
            source="Lib/pathlib.py, `Path.glob`", **common,
        ),
    ]  # fmt: skip


def _mapping_zeros(warn: Callable[[str], None], original: Any) -> Any:
    def new(subtype: Any, filename: Any, dtype: Any = "uint8", mode: str = "r+", *args: Any, **kwargs: Any) -> Any:
        try:
            return original(subtype, filename, dtype, mode, *args, **kwargs)
        except MISSING_FILE:
            if "w" in mode:
                raise
        warn(f"`{filename}`")
        import numpy

        shape = kwargs.get("shape", args[1] if len(args) > 1 else None)
        return numpy.zeros(TOKENS if shape is None else shape, dtype).view(subtype)

    return new


def _reading_zeros(warn: Callable[[str], None], original: Any) -> Any:
    @functools.wraps(original)
    def fromfile(file: Any, dtype: Any = float, count: int = -1, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(file, dtype, count, *args, **kwargs)
        except MISSING_FILE:
            warn(f"`{file}`")
        import numpy

        return numpy.zeros(TOKENS if count < 0 else count, dtype)

    return fromfile


def _finding(make_file: Callable[[Any], bool], warn: Callable[[str], None], original: Any) -> Any:
    @functools.wraps(original)
    def glob(pathname: Any, *args: Any, **kwargs: Any) -> list[Any]:
        found: list[Any] = original(pathname, *args, **kwargs)
        if not found and script_location.is_called_by_user() and make_file(os.fspath(pathname)):
            warn(f"`{pathname}`")
            found = original(pathname, *args, **kwargs)
        return found

    return glob


def _finding_below(make_file: Callable[[Any], bool], warn: Callable[[str], None], original: Any) -> Any:
    @functools.wraps(original)
    def glob(self: Path, pattern: Any, *args: Any, **kwargs: Any) -> Any:
        found = list(original(self, pattern, *args, **kwargs))
        if not found and script_location.is_called_by_user() and make_file(os.path.join(self, pattern)):  # noqa: PTH118 - of texts
            warn(f"`{pattern}`")
            found = list(original(self, pattern, *args, **kwargs))
        return iter(found)

    return glob


def _make_file(sample: SyntheticSample | None, pattern: Any) -> bool:
    """Make files of texts like the sample that match `pattern`, in the overlay; whether it is one of such files.

    Two, of which readers may hold the first back for validation. Source: karpathy/llama2.c, tinystories.py.
    """
    text = os.fsdecode(pattern)
    if not text.endswith(_SUFFIX) or "**" in text or "?" in text or "[" in text:
        return False
    for path in {Path(text.replace("*", name)) for name in ("000000", "000001")}:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(struct.pack(f"<{_HEADER_INTEGERS}i", _MAGIC, _VERSION, TOKENS, *[0] * (_HEADER_INTEGERS - 3)))
            file.write(_separated_texts(sample) if sample is not None else b"")
            file.truncate(4 * _HEADER_INTEGERS + 2 * TOKENS)
    return True


def _separated_texts(sample: SyntheticSample) -> bytes:
    """16-bit tokens of the first texts, which begin with the end-of-text token."""
    is_gpt2 = _GPT2_END_OF_TEXT < sample.classes <= _GPT2_PADDED
    end_of_text = _GPT2_END_OF_TEXT if is_gpt2 else min(sample.classes - 1, 0xFFFF)
    text = struct.pack("<H", end_of_text) + bytes(2 * (sample.shape[0] - 1))
    return text * (_SEPARATED_TOKENS // sample.shape[0])


def synthetic_text(vocabulary: int) -> str:
    """Lines of words, of which `vocabulary` differ."""
    words = [_word(index) for index in range(vocabulary)]
    lines = (
        " ".join(words[index % vocabulary] for index in range(first, first + _WORDS_OF_LINE))
        for first in range(0, max(WORDS, vocabulary), _WORDS_OF_LINE)
    )
    return "\n".join(lines) + "\n"


def token_count(samples: Sequence[SyntheticSample]) -> int:
    """How many tokens differ in the synthetic texts; 0 without any."""
    text = first_text(samples_for_all(samples))
    return 0 if text is None else text.classes


def synthetic_words(vocabulary: int, first: int, count: int) -> list[str]:
    """Words number `first` and following; after the last of the vocabulary its first again."""
    return [_word(index % vocabulary) for index in range(first, first + count)]


def _word(index: int) -> str:
    """The first ones are signs, so that models of characters know them; the others are numbers in letters."""
    if index < len(_SIGNS):
        return _SIGNS[index]
    index, letters = index - len(_SIGNS), ""
    while True:
        index, digit = divmod(index, len(string.ascii_letters))
        letters += string.ascii_letters[digit]
        if not index:
            return letters
