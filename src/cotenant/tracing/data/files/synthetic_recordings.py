"""Recordings and HDF5 files that a script reads and that are not on this machine.

A synthetic sample of floating-point numbers and one dimension is a recording: `32000:float32` has as many numbers. Its
sampling rate is the requested one, or that of the code that reads it, by its variables, attributes and options; else
22,050 Hz for `scipy`, which text-to-speech reads with, and 16,000 Hz for the other readers. An HDF5 file holds the
first sample under every name and every index, and one class under those that are common for labels;
`pid=2048:int64:50` describes what has another name. Where samples are texts, `tokens` are those of all texts, one after
another. A file holds one sample alone where its path has a name from a made-up list, where `__getitem__` of a data set
finds its path, or where it is a scan.
Source of the names: charlesq34/pointnet, provider.py.
"""

from __future__ import annotations

import ast
import errno
import functools
import importlib
import io
import math
import os
import re
import types
import wave
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cotenant.tracing import script_location
from cotenant.tracing.data import placeholders
from cotenant.tracing.data.data_options import SyntheticSample, recordings_and_rows
from cotenant.tracing.data.images.synthetic_torchvision import synthetic_tensor
from cotenant.tracing.data.sample_paths import sample_at, samples_for_all
from cotenant.tracing.data.static_analysis.source_tree import called_name, innermost, parsed_source
from cotenant.tracing.data.tables import synthetic_records
from cotenant.tracing.data.text.token_files import TOKENS
from cotenant.tracing.patches.registry import ImportPatch, Patch, Phase

_SPEECH_HZ, _SYNTHESIS_HZ = 16_000, 22_050
_RATE_NAME = re.compile(r"(?:\w*_)?sampl(?:e|ing)_?rate|sr", re.IGNORECASE)
_RATES = range(4_000, 200_000)  # in Hz
_READER_DEPTH = 3  # functions of the script: a data set's method that calls the one that reads
_INT16_PEAK = 2**15 - 1
_ROWS = 2000  # of an HDF5 data set, as many as images of a folder
_LABELS = re.compile(r"(?:.*_)?(?:label|target|class|y)s?", re.IGNORECASE)
_MIN_EXTENT, _MIN_VOXELS = 16, 1 << 20  # of a scan: no image has as many channels
_ROW_NAME = re.compile(r"\d{6}(?:\.\w+)*")
"""As lists have them that are made up, see `synthetic_records`."""
_SPLIT = re.compile(r"train(?:ing)?|val(?:id|idation)?|test(?:ing)?|dev", re.IGNORECASE)
_STREAMS = ("tokens",)
"""Names of the tokens of all texts, one after another."""
_REASON = "It raises where the file is missing."


def patches(samples: Sequence[SyntheticSample], warn: Callable[[str], None]) -> list[Patch | ImportPatch]:
    """Readers of recordings, if a sample is one, and of HDF5 files."""
    line = next(iter(recordings_and_rows(samples_for_all(samples))), None)
    hdf5 = ImportPatch(
        target="h5py", phase=Phase.DATA, reason=_REASON, source="h5py/_hl/files.py, `File`",
        expand=lambda module: [_hdf5_patch(module, samples, warn)],
    )  # fmt: skip
    if line is None:
        return [hdf5]
    return [
        hdf5,
        Patch(
            target="soundfile:SoundFile.__init__", phase=Phase.DATA, wraps=True, reason=_REASON,
            replacement=functools.partial(_opening_soundfile, line.shape[0]), source="soundfile.py, `SoundFile`",
        ),
        Patch(
            target="wave:open", phase=Phase.DATA, wraps=True, reason=_REASON,
            replacement=functools.partial(_opening_wave, line.shape[0]), source="Lib/wave.py, `open`",
        ),
        *(
            Patch(
                target=target, phase=Phase.DATA, wraps=True, reason=_REASON, source=source,
                replacement=functools.partial(_reading, functools.partial(make, line.shape[0]), warn),
            )
            for target, make, source in (
                ("scipy.io.wavfile:read", _of_scipy, "scipy/io/wavfile.py, `read`"),
                ("soundfile:read", _of_soundfile, "soundfile.py, `read`"),
                ("librosa:load", _of_librosa, "librosa/core/audio.py, `load`"),
                ("librosa.core:load", _of_librosa, "librosa/core/audio.py, `load`"),
                ("torchaudio:load", _of_torchaudio, "torchaudio/__init__.py, `load`"),
            )
        ),
    ]  # fmt: skip


def _reading(make: Callable[..., Any], warn: Callable[[str], None], original: Any) -> Any:
    @functools.wraps(original)
    def read(file: Any, *args: Any, **kwargs: Any) -> Any:
        # Each reader, and each version, has another error; some find the file missing in another process.
        is_there = not isinstance(file, (str, os.PathLike)) or os.path.exists(file)  # noqa: PTH110 - of both kinds
        if is_there and not placeholders.is_placeholder(file):  # the question may have made it
            return original(file, *args, **kwargs)
        warn("a recording that the script opens")
        return make(*args, **kwargs)

    return read


def _rate_of_reader(otherwise: int) -> int:
    """The sampling rate that the functions of the script name which read a recording now."""
    frame: types.FrameType | None = script_location.calling_frame()
    depth = 0
    while frame is not None and depth < _READER_DEPTH:
        if script_location.is_user_file(frame.f_code.co_filename):
            depth += 1
            names = script_location.visible_names(frame)
            if found := _rate(names) or next(filter(None, map(_rate_of_parts, names.values())), 0):
                return found
        frame = frame.f_back
    return otherwise


def _rate(names: Mapping[Any, Any]) -> int:
    rates = (value for name, value in names.items() if isinstance(name, str) and _RATE_NAME.fullmatch(name))
    return next((rate for rate in rates if type(rate) is int and rate in _RATES), 0)


def _rate_of_parts(value: Any) -> int:
    """Of an object of the script's, such as a data set or options, and of its own parts, such as its options."""
    names = _parts(value)
    return _rate(names) or next((rate for part in list(names.values()) if (rate := _rate(_parts(part)))), 0)


def _parts(value: Any) -> Mapping[Any, Any]:
    if isinstance(value, (type, types.ModuleType, types.FunctionType, torch.nn.Module)):
        return {}
    return value if isinstance(value, dict) else getattr(value, "__dict__", {})


def _waveform(count: int) -> Any:
    """Numbers that are not all the same: scripts divide by the largest, or by the deviation."""
    numpy = importlib.import_module("numpy")
    return numpy.sin(numpy.arange(count) / 10).astype(numpy.float32)


def _of_scipy(count: int, *args: Any, **kwargs: Any) -> Any:
    return _rate_of_reader(_SYNTHESIS_HZ), (_waveform(count) * _INT16_PEAK).astype("int16")


def _of_soundfile(
    count: int, frames: int = -1, start: int = 0, stop: Any = None, dtype: str = "float64",
    always_2d: bool = False, **kwargs: Any,
) -> Any:  # fmt: skip
    made = _waveform(count if frames < 0 else min(count, frames)).astype(dtype)
    return (made[:, None] if always_2d else made), _rate_of_reader(_SPEECH_HZ)


def _of_librosa(count: int, sr: Any = _SYNTHESIS_HZ, **kwargs: Any) -> Any:
    return _waveform(count), sr or _SYNTHESIS_HZ


def _of_torchaudio(count: int, frame_offset: int = 0, num_frames: int = -1, *args: Any, **kwargs: Any) -> Any:
    made = torch.from_numpy(_waveform(count if num_frames < 0 else min(count, num_frames)))
    return made[None], _rate_of_reader(_SPEECH_HZ)


def _opening_soundfile(count: int, original: Any) -> Any:
    """`soundfile.info` and readers of blocks open a file so, without Python."""

    @functools.wraps(original)
    def init(self: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        original(self, io.BytesIO(_wave_bytes(count)) if placeholders.is_placeholder(file) else file, *args, **kwargs)

    return init


def _opening_wave(count: int, original: Any) -> Any:
    @functools.wraps(original)
    def open_(file: Any, *args: Any, **kwargs: Any) -> Any:
        content = io.BytesIO(_wave_bytes(count)) if placeholders.is_placeholder(file) else file
        return original(content, *args, **kwargs)

    return open_


@functools.cache
def _wave_bytes(count: int) -> bytes:
    content = io.BytesIO()
    with wave.Wave_write(content) as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(_SPEECH_HZ)
        file.writeframes((_waveform(count) * _INT16_PEAK).astype("int16").tobytes())
    return content.getvalue()


def _hdf5_patch(module: Any, samples: Sequence[SyntheticSample], warn: Callable[[str], None]) -> Patch:
    return Patch(
        target="h5py:File.__init__", phase=Phase.DATA, wraps=True, reason=_REASON,
        replacement=functools.partial(_opening_hdf5, _synthetic_file(module), samples, warn),
        source="h5py/_hl/files.py, `File`",
    )  # fmt: skip


def _opening_hdf5(
    synthetic: type, samples: Sequence[SyntheticSample], warn: Callable[[str], None], original: Any
) -> Any:
    @functools.wraps(original)
    def init(self: Any, name: Any, *args: Any, **kwargs: Any) -> None:
        if not placeholders.is_placeholder(name):
            try:
                original(self, name, *args, **kwargs)
                return
            except OSError as error:  # one of no kind with `driver="core"`
                mode = args[0] if args else kwargs.get("mode", "r")
                is_path = isinstance(name, (str, os.PathLike)) and error.errno is None
                is_absent = isinstance(error, FileNotFoundError) or (is_path and not os.path.lexists(name))
                if not is_absent or mode[:1] in ("w", "x"):
                    raise
        warn(f"`{name}`")
        self.__class__ = synthetic
        self.synthetic_samples, self.synthetic_name = samples, os.fspath(name)
        self.has_one_sample = _is_of_one_sample(name) or _is_of_item(script_location.calling_frame())

    return init


@functools.cache
def _synthetic_file(module: Any) -> type:
    """The class of a file that is missing. It stays an `h5py.File`, for scripts that ask."""

    class SyntheticFile(module.File):
        def __getitem__(self, name: Any) -> Any:
            first = samples_for_all(self.synthetic_samples)[0]
            has_own_file = self.has_one_sample or _is_scan(first)
            is_label = isinstance(name, str) and _LABELS.fullmatch(name.rpartition("/")[2])
            of_labels = first.shape if has_own_file and _is_without_channels(first) else (1,)
            default = replace(first, shape=of_labels, dtype="int64") if is_label else first
            is_stream = name in _STREAMS and first.is_text
            if is_stream:  # of a whole corpus
                default = replace(first, shape=())
            sample = sample_at(f"{self.synthetic_name}/{name}", self.synthetic_samples, default)
            if has_own_file:
                return synthetic_tensor(sample).numpy()
            if sample is first:
                synthetic_records.common_arrays.append(str(name))
            other = first if sample is default else sample
            rows = _SyntheticRows(sample, other, is_of_matlab=self.synthetic_name.endswith(".mat"))
            rows.member = functools.partial(self._member, name)
            return rows

        def _member(self, group: Any, name: str) -> Any:
            """What a group of data sets has by a name; None where nothing says that it is one."""
            full = f"{group}/{name}"
            parts = [sample.path_part for sample in self.synthetic_samples if sample.path_part in full]
            is_group = _SPLIT.fullmatch(str(group)) or any(part not in str(group) for part in parts)
            return self[full] if is_group else None

        def get(self, name: Any, default: Any = None, *args: Any, **kwargs: Any) -> Any:
            """As of a dict that has every name."""
            return self[name]

        def __contains__(self, name: Any) -> bool:
            return True

        def keys(self) -> Any:
            """Names that samples for this file describe, as in `data.h5/obs=3x50x50`.

            Raises:
                FileNotFoundError: there are none, and what the names would be is not known.
            """
            parts = [sample.path_part.rpartition("/") for sample in self.synthetic_samples]
            found = [name for file, _, name in parts if file and file in self.synthetic_name]
            if not found:
                raise FileNotFoundError(errno.ENOENT, "the names in it are not known", self.synthetic_name)
            return found

        def __iter__(self) -> Any:
            return iter(self.keys())

        def __len__(self) -> int:
            return len(self.keys())

        def items(self) -> Any:
            """As of a dict."""
            return [(name, self[name]) for name in self.keys()]

        def values(self) -> Any:
            """As of a dict."""
            return [self[name] for name in self.keys()]

        def __bool__(self) -> bool:
            return True

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *args: object) -> None:
            return

        def close(self) -> None:
            return

        def __repr__(self) -> str:
            return "<synthetic HDF5 file>"

    return SyntheticFile


def _is_of_one_sample(path: Any) -> bool:
    """Whether a script listed a file, or has its name or that of its folder from a list that was made up."""
    is_of_list = bool(synthetic_records.made_up) and any(map(_ROW_NAME.fullmatch, Path(path).parts))
    return is_of_list or placeholders.is_placeholder(path)


def _is_of_item(frame: types.FrameType) -> bool:
    """Whether an item of a data set opens the file now, by a path that it finds: one for all is an attribute."""
    code = frame.f_code
    call = innermost(parsed_source(code.co_filename), frame.f_lineno, (ast.Call,))
    opened = [node for node in ast.walk(call) if called_name(node) == "File"] if call is not None else []
    names = {part.id for node in opened for part in ast.walk(node) if isinstance(part, ast.Name)}
    return code.co_name == "__getitem__" and not names.isdisjoint(code.co_varnames[1:])


def _is_without_channels(sample: SyntheticSample) -> bool:
    """Whether a sample is a slice or a scan, which has a label for each of its elements."""
    return len(sample.shape) > 1 and min(sample.shape) >= _MIN_EXTENT


def _is_scan(sample: SyntheticSample) -> bool:
    return sample.is_image and _is_without_channels(sample) and math.prod(sample.shape) > _MIN_VOXELS


class _SyntheticRows:
    """A data set of rows that are all alike, or a group of them by name; of single numbers, a text of tokens.

    `member`: a data set in a group such as `train`, as `file["train"]["x"]` reads it.

    Labels of classes are numbers; they are like `other` for a reader who takes more of their dimensions, as files for
    super-resolution have images in `data` and `label`. A file of MATLAB has its dimensions in the other order, so the
    rows are its columns there: readers transpose them.
    Source: MATLAB, `save`, "-v7.3".
    """

    def __init__(self, sample: SyntheticSample, other: SyntheticSample, *, is_of_matlab: bool = False) -> None:
        numpy = importlib.import_module("numpy")
        self._sample, self._other, self._is_of_matlab = sample, other, is_of_matlab
        row = numpy.zeros(sample.shape, sample.dtype)
        rows = numpy.broadcast_to(row, (_ROWS if sample.shape else TOKENS, *sample.shape))
        self._rows = rows.transpose() if is_of_matlab else rows
        self.member: Callable[[str], Any] = lambda _: None
        self.shape, self.dtype, self.ndim = self._rows.shape, self._rows.dtype, self._rows.ndim

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            member = self.member(key)
            if member is None:  # or the rows of a split in a group, as those of a category's shapes
                return self if _SPLIT.fullmatch(key) else self._rows[0]
            return member
        if isinstance(key, tuple) and len(key) > self.ndim and self._other != self._sample:
            return _SyntheticRows(self._other, self._other, is_of_matlab=self._is_of_matlab)[key]
        found = self._rows[() if key is Ellipsis else key]
        return found.copy() if found.nbytes <= self._rows[0].nbytes else found

    def keys(self) -> list[str]:
        """Names of as many rows."""
        return [str(index) for index in range(_ROWS)]

    def values(self) -> list[Any]:
        """As many rows."""
        return [self[name] for name in self.keys()]

    def items(self) -> list[tuple[str, Any]]:
        """As many rows, each with its name."""
        return [(name, self[name]) for name in self.keys()]
