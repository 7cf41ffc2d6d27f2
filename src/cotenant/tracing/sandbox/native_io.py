"""Libraries whose compiled code opens files itself: their paths are redirected to the overlay.

Hugging Face tokenizers, which every checkpoint of a `Trainer` saves, Arrow tables, which `datasets` maps, storages, the
HDF5 files, recordings, databases and tokenizers that scripts write before they train, and TensorBoard's events.

A module of its own: these libraries are known by name and need not be installed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cotenant.tracing.patches.registry import Patch, Phase
from cotenant.tracing.sandbox.overlay import Overlay

_SOUND_WRITES, _SOUND_READS_AND_WRITES = 0x20, 0x30
"""Source: soundfile.py, `_snd.SFM_WRITE` and `_snd.SFM_RDWR`."""
_OPTION = re.compile(r"--(input|model_prefix)=(\S+)")
_Redirect = Callable[[Any, Sequence[Any]], Any]
"""Gives the path to use for a path, and the other arguments of the call."""


def patches(overlay: Overlay) -> list[Patch]:
    """Functions that take a path."""

    def memory_map(original: Any) -> Any:
        def call(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            reads = mode in ("r", "rb")
            redirected = overlay.visible(path) if reads else overlay.for_writing(path, fresh="w" in mode)
            return original(redirected, mode, *args, **kwargs)

        return call

    def map_storage(original: Any) -> Any:
        def call(filename: Any, shared: bool | None = False, *args: Any, **kwargs: Any) -> Any:
            redirected = overlay.for_writing(filename, fresh=False) if shared else overlay.visible(filename)
            return original(str(redirected), shared, *args, **kwargs)

        return call

    def reads(path: Any, _rest: Sequence[Any]) -> Any:
        return overlay.visible(path)

    def writes(path: Any, _rest: Sequence[Any]) -> Any:
        return overlay.for_writing(path, fresh=True)

    def database(path: Any, _rest: Sequence[Any]) -> Any:
        if os.fsdecode(path).startswith((":memory:", "file:")):
            return path
        with contextlib.suppress(OSError):  # one that is too large to be copied is only read, it seems
            return overlay.for_writing(path, fresh=False)
        return overlay.visible(path)

    def hdf5(path: Any, rest: Sequence[Any]) -> Any:
        mode = rest[0] if rest else "r"
        return overlay.visible(path) if mode == "r" else overlay.for_writing(path, fresh=mode == "w")

    def sound(path: Any, rest: Sequence[Any]) -> Any:
        mode = rest[0] if rest else 0
        if mode not in (_SOUND_WRITES, _SOUND_READS_AND_WRITES):
            return overlay.visible(path)
        return overlay.for_writing(path, fresh=mode == _SOUND_WRITES)

    def files(paths: Any, _rest: Sequence[Any]) -> Any:
        return [overlay.visible(path) for path in paths] if isinstance(paths, (list, tuple)) else paths

    def folder(path: Any, _rest: Sequence[Any]) -> Any:
        return Path(overlay.for_writing(Path(path, "vocab"), fresh=True)).parent

    rust = "Tokenizers are Rust, which opens files without Python's functions."
    table: list[tuple[str, int, _Redirect, str, str]] = [
        ("tokenizers:Tokenizer.save", 1, writes, rust, "tokenizers/__init__.pyi, `Tokenizer.save`"),
        ("tokenizers:Tokenizer.train", 1, files, rust, "tokenizers/__init__.pyi, `Tokenizer.train`"),
        ("tokenizers.models:Model.save", 1, folder, rust, "tokenizers/models/__init__.pyi, `Model.save`"),
        ("h5py._hl.files:make_fid", 0, hdf5, "HDF5 opens files in C.", "h5py/_hl/files.py, `make_fid`"),
        ("soundfile:SoundFile._open", 1, sound, "libsndfile opens files in C.", "soundfile.py, `SoundFile._open`"),
        ("sqlite3:connect", 0, database, "SQLite opens files in C.", "Lib/sqlite3/dbapi2.py"),
        ("sqlite3.dbapi2:connect", 0, database, "SQLAlchemy takes it from there.", "Lib/sqlite3/dbapi2.py"),
        ("pyarrow.parquet:write_table", 1, writes, "Arrow writes files in C++.", "pyarrow/parquet/core.py"),
        ("pyarrow.parquet:read_table", 0, reads, "Arrow reads files in C++.", "pyarrow/parquet/core.py"),
        (
            "sentencepiece:SentencePieceProcessor.LoadFromFile", 1, reads, "SentencePiece reads files in C++.",
            "sentencepiece/__init__.py, `LoadFromFile`",
        ),
    ]  # fmt: skip
    return [
        *(
            Patch(
                target=target, phase=Phase.DATA, replacement=functools.partial(_with_path, at, redirect), wraps=True,
                stacks=True,
                reason=reason, source=source,
            )
            for target, at, redirect, reason, source in table
        ),
        Patch(
            target="tokenizers:Tokenizer.from_file", phase=Phase.DATA, wraps=True, reason=rust,
            replacement=lambda original: staticmethod(lambda path: original(str(overlay.visible(path)))),
            source="tokenizers/__init__.pyi, `Tokenizer.from_file`",
        ),
        *(
            Patch(
                target=f"tokenizers.models:{name}.{function}", phase=Phase.DATA, wraps=True, reason=rust,
                replacement=functools.partial(_reading, overlay), source="tokenizers/models/__init__.pyi, `from_file`",
            )
            for name in ("BPE", "WordPiece", "WordLevel")
            for function in ("from_file", "read_file")
        ),
        Patch(
            target="sentencepiece:SentencePieceTrainer._Train", phase=Phase.DATA, wraps=True,
            replacement=functools.partial(_training_pieces, overlay), reason="SentencePiece trains from files in C++.",
            source="sentencepiece/__init__.py, `_Train`",
        ),
        Patch(
            target="pyarrow:memory_map", phase=Phase.DATA, replacement=memory_map, wraps=True,
            reason="Arrow maps files in C++.", source="pyarrow/io.pxi, `memory_map`",
        ),
        Patch(
            target="torch:from_file", phase=Phase.DATA, replacement=map_storage, wraps=True,
            reason="PyTorch maps files in C++.", source="aten/src/ATen/native/TensorFactories.cpp, `from_file`",
        ),
        Patch(
            target="tensorboard.compat:tf", phase=Phase.DATA, wraps=True,
            replacement=lambda original: importlib.import_module("tensorboard.compat.tensorflow_stub"),
            reason="Where TensorFlow is installed, it writes the events in C++; the stub writes them in Python.",
            source="tensorboard/compat/__init__.py, `tf`",
        ),
    ]  # fmt: skip


def _with_path(at: int, redirect: _Redirect, original: Any) -> Any:
    """A function whose argument at place `at` is a path, or a list of paths."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) > at and isinstance(args[at], (str, bytes, os.PathLike, list, tuple)):
            found = redirect(args[at], args[at + 1 :])
            if found is not args[at]:
                text = os.fsencode(found) if isinstance(args[at], bytes) else found
                args = (*args[:at], str(text) if isinstance(text, os.PathLike) else text, *args[at + 1 :])
        return original(*args, **kwargs)

    return call


def _reading(overlay: Overlay, original: Any) -> Any:
    """A function of a class whose arguments are files to read."""

    @functools.wraps(original)
    def call(*paths: Any, **kwargs: Any) -> Any:
        shown = [str(overlay.visible(path)) if isinstance(path, (str, os.PathLike)) else path for path in paths]
        named = {name: str(overlay.visible(kwargs[name])) for name in ("vocab", "merges") if kwargs.get(name)}
        return original(*shown, **{**kwargs, **named})

    return staticmethod(call)


def _training_pieces(overlay: Overlay, original: Any) -> Any:
    """Texts are read, and two files written whose names begin with a prefix."""

    def paths(name: str, value: Any) -> Any:
        if name == "model_prefix":
            return str(overlay.for_writing(value, fresh=True))
        parts = value.split(",") if isinstance(value, str) else value
        return ",".join(str(overlay.visible(part)) for part in parts)

    @functools.wraps(original)
    def call(arg: Any = None, **kwargs: Any) -> Any:
        if isinstance(arg, str):
            return original(_OPTION.sub(lambda match: f"--{match[1]}={paths(match[1], match[2])}", arg), **kwargs)
        given = {name: paths(name, kwargs[name]) for name in ("input", "model_prefix") if kwargs.get(name)}
        return original(arg, **{**kwargs, **given})

    return staticmethod(call)
