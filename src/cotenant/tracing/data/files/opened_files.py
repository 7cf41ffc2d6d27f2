"""Files that a script opens itself, by `open` or by a library that reads without Python: what is missing is made."""

from __future__ import annotations

import errno
import functools
import os
import pickle
import types
from collections.abc import Callable, Sequence
from typing import Any

from cotenant.tracing import script_location
from cotenant.tracing.data.data_options import SyntheticSample, first_image, image_size
from cotenant.tracing.data.images.synthetic_torchvision import synthetic_tensor
from cotenant.tracing.data.sample_paths import MISSING_FILE, sample_at, samples_for_all
from cotenant.tracing.patches import missing_weights
from cotenant.tracing.patches.registry import Patch, Phase
from cotenant.tracing.sandbox.builtin_function import as_builtin
from cotenant.tracing.sandbox.overlay import Overlay


def patches(
    samples: Sequence[SyntheticSample],
    overlay: Overlay,
    makers: Sequence[Callable[[str], bool]],
    make_records: Callable[[str], bool],
    is_text: Callable[[object], bool],
    make_image: Callable[[str], bool],
) -> list[Patch]:
    """Functions that open files. Each of `makers` makes a missing file of its kind, and says whether it did.

    The first makes a data set by its list. `is_text`: whether a file was made as a text.
    """
    common: dict[str, Any] = {"phase": Phase.DATA, "wraps": True, "stacks": True, "reason": "The files are missing."}
    return [
        *(
            Patch(target=target, replacement=functools.partial(_opening, makers, wrap), source=source, **common)
            for target, wrap, source in (
                ("builtins:open", as_builtin, "Lib/io.py, `open`"),
                ("io:open", as_builtin, "Lib/io.py, `open`"),
                ("codecs:open", lambda made, original: made, "Lib/codecs.py, `open`"),
            )
        ),
        *(
            Patch(
                target=f"numpy:{name}", replacement=functools.partial(_reading_numbers, samples, overlay, make_records),
                source=f"numpy/lib/_npyio_impl.py, `{name}`", **common,
            )
            for name in ("loadtxt", "genfromtxt")
        ),
        Patch(
            target="numpy:load", replacement=functools.partial(_loading_lists, makers[0]),
            source="numpy/lib/_npyio_impl.py, `load`", **common,
        ),
        Patch(
            target="pickle:load", replacement=functools.partial(_unpickling, is_text),
            source="Lib/pickle.py, `load`", **common,
        ),
        Patch(
            target="cv2:imread", replacement=functools.partial(_reading_image, samples, overlay),
            source="opencv/modules/imgcodecs/src/loadsave.cpp, `imread`", **common,
        ),
        Patch(
            target="torchvision.io.image:read_file", also_in="torchvision.io",
            replacement=functools.partial(_reading_bytes, overlay, make_image),
            source="torchvision/csrc/io/image/cpu/read_write_file.cpp, `read_file`", **common,
        ),
        Patch(
            target="blobfile._context:io", replacement=functools.partial(_with_raw_files, overlay),
            source="blobfile/_context.py, `BlobFile`", **common,
        ),
    ]  # fmt: skip


def _unpickling(is_text: Callable[[object], bool], original: Any) -> Any:
    """`pickle.load`, for which a file that was made as a text is missing: nobody knows what it would hold."""

    @functools.wraps(original)
    def load(file: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(file, *args, **kwargs)
        except (pickle.UnpicklingError, EOFError, ValueError, KeyError, IndexError, AttributeError):
            if is_text(getattr(file, "name", None)):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file.name) from None
            raise

    return load


def _opening(makers: Sequence[Callable[[str], bool]], wrap: Callable[[Any, Any], Any], original: Any) -> Any:
    @functools.wraps(original)
    def open_(file: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(file, *args, **kwargs)
        except MISSING_FILE:
            is_path = isinstance(file, (str, bytes, os.PathLike))
            mode = args[0] if args else kwargs.get("mode", "r")
            is_read = isinstance(mode, str) and not set(mode) & set("wax")  # else its folder is missing
            opener = script_location.opening_frame().f_code.co_filename
            if not (is_path and is_read and script_location.is_user_file(opener)):
                raise
            path = os.fsdecode(file)
            if missing_weights.is_checkpoint_file(path, mode):
                return missing_weights.MissingCheckpointFile(path)
            if not any(make(path) for make in makers):
                raise
        return original(file, *args, **kwargs)

    return wrap(open_, original)


def _reading_numbers(
    samples: Sequence[SyntheticSample], overlay: Overlay, make: Callable[[str], bool], original: Any
) -> Any:
    """A table of numbers in a text: a sample of its path or of two dimensions, else what its reader expects."""
    table = next((sample for sample in samples_for_all(samples) if len(sample.shape) == 2), None)

    @functools.wraps(original)
    def read(file: Any, dtype: Any = float, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(file, dtype, *args, **kwargs)
        except MISSING_FILE:
            import numpy

            sample = sample_at(file, samples, table)
            is_number = dtype is not None and numpy.issubdtype(numpy.dtype(dtype), numpy.number)
            if not script_location.is_called_by_user() or not is_number:
                raise
            if sample is not None:
                return synthetic_tensor(sample).numpy().astype(dtype)
            if not make(os.fspath(file)):
                raise
        return original(overlay.visible(file), dtype, *args, **kwargs)  # NumPy may hold an earlier `open`

    return read


def _loading_lists(make_dataset: Callable[[str], bool], original: Any) -> Any:
    """An array may be the list of a data set, such as `poses_bounds.npy`: others have a sample alone."""

    @functools.wraps(original)
    def load(file: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, (str, os.PathLike)) and script_location.is_called_by_user():
            make_dataset(os.fspath(file))
        return original(file, *args, **kwargs)

    return load


def _reading_image(samples: Sequence[SyntheticSample], overlay: Overlay, original: Any) -> Any:
    """OpenCV reads files without Python, so it sees none of the overlay."""
    common = first_image(samples_for_all(samples))

    def imread(path: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(overlay.visible(path), *args, **kwargs)
        image = sample_at(path, samples, common)
        if found is not None or image is None:
            return found
        import numpy

        _, height, width = image_size(image)
        is_gray = args[:1] == (0,) or kwargs.get("flags") == 0
        return numpy.zeros((height, width) if is_gray else (height, width, 3), numpy.uint8)

    return imread


def _reading_bytes(overlay: Overlay, make_image: Callable[[str], bool], original: Any) -> Any:
    """TorchVision reads the bytes of an image without Python, as for `read_image`, so it sees none of the overlay."""

    @functools.wraps(original)
    def read_file(path: Any, *args: Any, **kwargs: Any) -> Any:
        if not os.path.exists(path):  # noqa: PTH110 - of both kinds
            make_image(os.fsdecode(path))
        return original(os.fspath(overlay.visible(path)), *args, **kwargs)

    return read_file


def _with_raw_files(overlay: Overlay, module: Any) -> Any:
    """The module `io` with a `FileIO` that sees the overlay, for one library alone: others test for that class."""

    def raw_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        return module.FileIO(file if set(mode) & set("wax+") else overlay.visible(file), mode, *args, **kwargs)

    return types.SimpleNamespace(**{**vars(module), "FileIO": raw_file})
