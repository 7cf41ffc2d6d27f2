"""Models of SentencePiece that are not on this machine: they are made, with as many pieces as the synthetic texts.

A made model has the unknown, the first and the last piece, one for each byte, and the words of the made-up texts.
Source: google/sentencepiece, src/sentencepiece_model.proto, whose field numbers stand here.
"""

from __future__ import annotations

import functools
import os
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cotenant.tracing import script_location
from cotenant.tracing.data.data_options import SyntheticSample
from cotenant.tracing.data.text.token_files import synthetic_words, token_count
from cotenant.tracing.patches.registry import Patch, Phase
from cotenant.tracing.sandbox.overlay import Overlay

_NAME = re.compile(r"(?:.*[-_.])?(?:tokenizer|spiece|sentencepiece|spm?|bpe|unigram)[^/]*\.(?:model|spm)")
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3  # fields of `ModelProto`
_PIECE, _SCORE, _TYPE = 1, 2, 3  # fields of `SentencePiece`
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6  # its types
_MODEL_TYPE, _UNIGRAM, _BYTE_FALLBACK = 3, 1, 35  # fields of `TrainerSpec`, and a value
_MIN_SIZE_WITH_BYTES = 1024
_WORD_BEGINS = "▁"


class SentencePieceFiles:
    """Makes such files. `warn`: is called with their names."""

    def __init__(self, samples: Sequence[SyntheticSample], overlay: Overlay, warn: Callable[[str], None]) -> None:
        self._size = token_count(samples)
        self._overlay = overlay
        self._warn = warn

    def patches(self) -> list[Patch]:
        """The function that loads a model from its file."""
        return [
            Patch(
                target="sentencepiece:SentencePieceProcessor.LoadFromFile", phase=Phase.DATA, wraps=True, stacks=True,
                replacement=self._loading, reason="The file is missing.",
                source="sentencepiece/__init__.py, `LoadFromFile`",
            )
        ]  # fmt: skip

    def make_asked(self, path: str) -> bool:
        """Make a model where a script asks for it, and fails if it is not there; whether it was made."""
        is_model = _NAME.fullmatch(Path(path).name) is not None
        return is_model and script_location.is_absence_an_error() and self._make(path)

    def _loading(self, original: Any) -> Any:
        @functools.wraps(original)
        def load(processor: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(path, (str, os.PathLike)):
                self._make(os.fspath(path))
            return original(processor, path, *args, **kwargs)

        return load

    def _make(self, path: str) -> bool:
        full = self._overlay.absent(path)
        if full is None or not self._size:
            return False
        self._overlay.new_file(full).write_bytes(_model(self._size))
        self._warn(f"`{path}`, a model of {self._size} pieces,")
        return True


def _model(size: int) -> bytes:
    pieces = b"".join(
        _field(
            _PIECES, _field(_PIECE, piece.encode()) + _tag(_SCORE, 5) + struct.pack("<f", -index) + _number(_TYPE, kind)
        )
        for index, (piece, kind) in enumerate(_pieces(size))
    )
    trainer = _number(_MODEL_TYPE, _UNIGRAM) + _number(_BYTE_FALLBACK, int(size >= _MIN_SIZE_WITH_BYTES))
    return pieces + _field(_TRAINER, trainer) + _field(_NORMALIZER, b"")


def _pieces(size: int) -> Iterator[tuple[str, int]]:
    """Pieces that differ, with their types; no more than `size`, but for the first three."""
    known = {"<unk>": _UNKNOWN, "<s>": _CONTROL, "</s>": _CONTROL}
    if size >= _MIN_SIZE_WITH_BYTES:
        known |= {f"<0x{byte:02X}>": _BYTE for byte in range(256)}
    known |= {f"{_WORD_BEGINS}{word}": _NORMAL for word in synthetic_words(size, 0, size)}
    return (pair for pair, _ in zip(known.items(), range(max(size, 3)), strict=False))


def _tag(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _number(field: int, value: int) -> bytes:
    return _tag(field, 0) + _varint(value)


def _field(field: int, content: bytes) -> bytes:
    return _tag(field, 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Source: protobuf's encoding, base 128 with the lowest bits first."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])
