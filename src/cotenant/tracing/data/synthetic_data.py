"""Synthetic data in place of data that are not on this machine: samples of a given shape, for the usual ways to load.

A sample is described by `[PATH=]SHAPE[:DTYPE[:CLASSES]]`, e.g. `3x224x224`, `3x32x32:uint8:10` or `512:int64:32000`:
its shape, its dtype, and the number of classes (of whole numbers: of values); with a part of a path, it is for such
files alone. It replaces missing files and data sets, never existing ones: data sets of torchvision, Keras and PyTorch
Geometric, folders of timm, tables of Hugging Face and pandas, `numpy.load`, `torch.load`, images and archives of them,
texts, recordings, HDF5 files and files of tokens. Of several samples the first of whole numbers with one dimension is
for text, the first with three dimensions for images, and the first of all for everything else.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from cotenant.tracing import script_location
from cotenant.tracing.data import empty_listings, placeholders, synthetic_keras
from cotenant.tracing.data.data_options import CLASSES, SyntheticSample, parse_sample
from cotenant.tracing.data.files import file_questions, missing_downloads, synthetic_archives, synthetic_recordings
from cotenant.tracing.data.files.unpacked_files import loaded_tensors, unpacked_tensors
from cotenant.tracing.data.graphs import synthetic_graphs
from cotenant.tracing.data.images import synthetic_scans, synthetic_timm, synthetic_videos
from cotenant.tracing.data.images.synthetic_torchvision import (
    blank_image,
    coco_patches,
    dataset_patches,
    synthetic_tensor,
)
from cotenant.tracing.data.made_up_warnings import made_up
from cotenant.tracing.data.sample_paths import MISSING_FILE, sample_at, samples_for_all
from cotenant.tracing.data.static_analysis import class_folders
from cotenant.tracing.data.tables import (
    json_rows,
    reward_columns,
    saved_datasets,
    synthetic_columns,
    synthetic_records,
    synthetic_tables,
)
from cotenant.tracing.data.tables.column_values import ColumnMaker
from cotenant.tracing.data.tables.synthetic_hf_datasets import (
    LoadedTables,
    existing_at_hub,
    image_sample,
    mapping_in_this_process,
    number_of_batches,
    synthesizing_load,
    templating_texts,
    without_hashing,
)
from cotenant.tracing.data.text import token_files
from cotenant.tracing.patches import missing_weights
from cotenant.tracing.patches.registry import AbsenceContext, Entry, ImportPatch, Patch, Phase

_REASON = "It raises where the data are missing."
_ONE_DISTANCE = 17  # a prime, so that most columns have a 1
_OBJECT = re.compile(r"\bload\(.*\)\.item\(\)|\bload\(.*\)\[[^\]]*\]\.item\(\)")
_CAMERA = re.compile(r"(?:world|scale|camera)_mat(?:_inv)?_\d+")
_MASK, _LABEL_MAP = (
    re.compile(rf"\w*(?:{words})\w*\s*=\s*(?:\w+\.)*open\((?!.*\.convert\().*\)$", re.IGNORECASE)
    for words in ("mask|annot", "mask|annot|label|lbl")
)
"""Lines that open an image and give it one of these names, without a conversion."""
_WEIGHTS = re.compile(r"checkpoint|ckpt|(?<![a-z])weights(?![a-z])", re.IGNORECASE)


def patches(context: AbsenceContext) -> list[Entry]:
    """Functions that load data; without synthetic samples those that note what is not there."""
    texts = context.options.synthetic_data
    if not texts:
        return [*empty_listings.patches()]
    every = [parse_sample(text) for text in texts]
    samples = samples_for_all(every)
    image, tables = image_sample(samples), LoadedTables()

    def warn(what: str, made: str = "") -> None:
        context.recorder.warn(made_up(what, made or ", ".join(texts)))

    return [
        ImportPatch(
            target="torchvision.datasets", phase=Phase.DATA,
            expand=lambda module: dataset_patches(module, image, warn), reason=_REASON,
            source="torchvision/datasets/vision.py, `VisionDataset`",
        ),
        *synthetic_timm.patches(image, warn),
        *coco_patches(image, warn),
        *_hugging_face_patches(samples, tables, warn),
        *saved_datasets.patches(samples, tables, warn),
        *synthetic_columns.patches(ColumnMaker.of(samples), tables.only_synthetic),
        *reward_columns.patches(ColumnMaker.of(samples), tables.only_synthetic),
        Patch(
            target="numpy:load", phase=Phase.DATA, wraps=True, reason=_REASON, stacks=True,
            replacement=_replacing_missing_files(functools.partial(_numpy_file, every, samples[0]), warn),
        ),
        *(
            Patch(
                target=target, phase=Phase.DATA, wraps=True, reason=_REASON,
                source="scipy/io/matlab/_mio.py, `loadmat`",
                replacement=_replacing_missing_files(functools.partial(_matlab_file, every), warn),
            )
            for target in ("scipy.io:loadmat", "scipy.io.matlab:loadmat")
        ),
        Patch(
            target="torch:load", phase=Phase.DATA, wraps=True, reason=_REASON, stacks=True,
            replacement=functools.partial(_loading, context.recorder, every, warn),
        ),
        Patch(
            target="torch:from_numpy", phase=Phase.DATA, wraps=True, replacement=_from_numpy, reason=_REASON,
            source="torch/csrc/utils/tensor_numpy.cpp, `tensor_from_numpy`",
        ),
        *json_rows.patches(ColumnMaker.of(samples)),
        *token_files.patches(samples, warn),
        *missing_downloads.patches(samples, warn),
        *file_questions.patches(every, context.overlay, warn),
        *synthetic_tables.patches(samples, context.overlay, warn),
        *synthetic_graphs.patches(warn),
        *synthetic_keras.patches(warn),
        *synthetic_recordings.patches(every, warn),
        *synthetic_archives.patches(samples, warn),
        *synthetic_videos.patches(samples, warn),
        *_image_patches(every, image, warn),
        *synthetic_scans.patches(every, samples[0], warn),
    ]  # fmt: skip


def _hugging_face_patches(
    samples: Sequence[SyntheticSample], tables: LoadedTables, warn: Callable[[str], None]
) -> list[Patch]:
    """Data sets of the hub, and the folders that scripts make of them."""
    return [
        *(
            Patch(
                target=f"datasets:{name}", phase=Phase.DATA, wraps=True,
                replacement=lambda original: synthesizing_load(original, samples, warn, tables), reason=_REASON,
                source="datasets/load.py, `load_dataset`",
            )
            for name in ("load_dataset", "load_from_disk")
        ),
        Patch(
            target="huggingface_hub:snapshot_download", phase=Phase.DATA, wraps=True, replacement=existing_at_hub,
            reason="Scripts ask by it whether the hub has a data set, and a trace has no network.",
            source="huggingface_hub/_snapshot_download.py, `snapshot_download`",
        ),
        Patch(
            target="datasets.arrow_dataset:Dataset.save_to_disk", phase=Phase.DATA, wraps=True,
            replacement=saved_datasets.saving_in_this_process,
            reason="A process of its own would write to the real folder, which a script made in the overlay.",
            source="datasets/arrow_dataset.py, `Dataset.save_to_disk`",
        ),
        Patch(
            target="torch.utils.data:DataLoader.__len__", phase=Phase.DATA, wraps=True,
            replacement=functools.partial(number_of_batches, tables),
            reason="A made-up table is shorter than any real one: a script's first tenth of its batches would be none.",
            source="torch/utils/data/dataloader.py, `DataLoader.__len__`",
        ),
        *(
            Patch(
                target=f"datasets.arrow_dataset:Dataset.{name}", phase=Phase.DATA, wraps=True,
                replacement=functools.partial(mapping_in_this_process, tables),
                reason="Each process would get a copy of what the function refers to, often the model.",
                source=f"datasets/arrow_dataset.py, `Dataset.{name}`",
            )
            for name in ("map", "filter")
        ),
        Patch(
            target="transformers.tokenization_utils_base:PreTrainedTokenizerBase.apply_chat_template",
            phase=Phase.DATA, wraps=True, replacement=functools.partial(templating_texts, tables),
            reason="A synthetic column has a text where the real one may have messages.",
            source="transformers/tokenization_utils_base.py, `apply_chat_template`",
        ),
        Patch(
            target="datasets.fingerprint:update_fingerprint", phase=Phase.DATA, wraps=True, also_in="datasets",
            replacement=functools.partial(without_hashing, tables),
            reason="It pickles what a function refers to, often the model, to find rows of earlier runs.",
            source="datasets/fingerprint.py, `update_fingerprint`",
        ),
    ]  # fmt: skip


def _image_patches(
    every: Sequence[SyntheticSample], image: SyntheticSample, warn: Callable[[str], None]
) -> list[Patch]:
    """Image files, by the libraries that read them."""

    def warn_of_image(_: str) -> None:
        warn("an image that the script opens")

    return [
        Patch(
            target="PIL.Image:open", phase=Phase.DATA, wraps=True, reason=_REASON,
            replacement=_replacing_missing_files(
                functools.partial(_opened_image, every, image), warn_of_image
            ),
        ),
        *(
            Patch(
                target=target, phase=Phase.DATA, wraps=True, reason=_REASON, source=source,
                replacement=_replacing_missing_files(functools.partial(_image_array, every, image), warn_of_image),
            )
            for target, source in (
                ("skimage.io:imread", "skimage/io/_io.py, `imread`"),
                ("imageio:imread", "imageio/v2.py, `imread`"),
                ("imageio.v2:imread", "imageio/v2.py, `imread`"),
                ("matplotlib.image:imread", "matplotlib/image.py, `imread`"),
                ("matplotlib.pyplot:imread", "matplotlib/image.py, `imread`"),
            )
        ),
    ]  # fmt: skip


def _numpy_file(samples: Sequence[SyntheticSample], default: SyntheticSample, file: Any) -> Any:
    """What `numpy.load` makes of a file that is missing.

    Raises:
        FileNotFoundError: it holds weights, by its path: their shapes are known to the model alone. Or it holds an
            object, such as a dict, which the script takes out of its array.
    """
    is_path = isinstance(file, (str, os.PathLike))
    is_object = _OBJECT.search(script_location.calling_text())
    if is_path and (is_object or _WEIGHTS.search(os.fspath(file))):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(file))
    if is_path and os.fspath(file).endswith(".npz"):
        return _MissingArrays(os.fspath(file), samples, default)
    made = unpacked_tensors(sample_at(file, samples, default))
    return tuple(map(_array, made)) if isinstance(made, tuple) else _array(made)


def _matlab_file(samples: Sequence[SyntheticSample], file: Any) -> Any:
    """What `scipy.io.loadmat` makes of a file that is missing.

    Raises:
        FileNotFoundError: no sample is for a name. Others than arrays, such as lists of files, are often in such files.
    """
    named = [sample for sample in samples if sample.path_part]
    if not isinstance(file, (str, os.PathLike)) or not named:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file)
    return _MissingArrays(os.fspath(file), samples, None)


def _array(made: torch.Tensor) -> Any:
    """An array in which some numbers are 1: scripts divide by the sum or the deviation of a column."""
    array = made.numpy()
    if made.is_floating_point():
        array.reshape(-1)[::_ONE_DISTANCE] = 1
    return array


class _MissingArrays(Mapping[str, Any]):
    """Arrays by name: `data.npz/x=12x207x2:float32` describes one, `.npz` or a sample without a path every one.

    Without a default, of a file of MATLAB, only those that are described are there.

    Matrices of cameras, as `world_mat_7`, are those of the identity. Source: lioryariv/idr, DATA_CONVENTION.md.
    """

    def __init__(self, path: str, samples: Sequence[SyntheticSample], default: SyntheticSample | None) -> None:
        self._path, self._samples, self._default = path, samples, default
        parts = [sample.path_part.rpartition("/") for sample in samples]
        named = [name for file, _, name in parts if file and file in path]
        self.files = named or ["arr_0"]  # the name that `numpy.savez` gives an array without one

    def __getitem__(self, name: str) -> Any:
        path = f"{self._path}/{name}"
        is_described = any(sample.path_part and sample.path_part in path for sample in self._samples)
        if _CAMERA.fullmatch(name) and not is_described:
            return importlib.import_module("numpy").eye(4, dtype="float32")
        sample = sample_at(path, self._samples, self._default)
        if sample is None:
            raise KeyError(name)
        return _array(synthetic_tensor(sample))

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    def __enter__(self) -> _MissingArrays:
        return self

    def __exit__(self, *args: object) -> None:
        return

    def close(self) -> None:
        """As of `numpy.lib.npyio.NpzFile`."""


def _opened_image(samples: Sequence[SyntheticSample], image: SyntheticSample, file: object) -> Any:
    """A blank image, of one channel where the script calls what it opens a mask, or a label of one of several classes.

    What the others call a label may be the image that a network is to restore.
    """
    found = sample_at(file, samples, image)
    pattern = _LABEL_MAP if found.classes != CLASSES else _MASK
    is_map = not found.path_part and pattern.match(script_location.calling_text())
    return blank_image(replace(found, shape=(1, *found.shape[1:])) if is_map else found)


def _image_array(samples: Sequence[SyntheticSample], image: SyntheticSample, file: object) -> Any:
    """A blank image as an array of numpy."""
    return importlib.import_module("numpy").array(blank_image(sample_at(file, samples, image)))


def _loading(recorder: Any, samples: Sequence[SyntheticSample], warn: Callable[[str], None], original: Any) -> Any:
    @functools.wraps(original)
    def load(file: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, missing_weights.MissingCheckpointFile):
            missing_weights.warn_missing(recorder, file.name)
            return missing_weights.MissingStateDict.at(file.name)
        try:
            return original(file, *args, **kwargs)
        except MISSING_FILE:
            if missing_weights.is_checkpoint(str(file)):
                missing_weights.warn_missing(recorder, str(file))
                return missing_weights.MissingStateDict.at(str(file))
            if not str(file) or class_folders.caller_has_values_of_its_own():
                raise
            warn(f"`{file}`")
            synthetic_records.made_up.append(str(file))
            return loaded_tensors(sample_at(file, samples, samples_for_all(samples)[0]))

    return load


def _from_numpy(original: Any) -> Any:
    """`torch.save` takes arrays, too: what stands for such a file is a tensor."""

    @functools.wraps(original)
    def from_numpy(array: Any) -> Any:
        is_ours = isinstance(array, torch.Tensor) and synthetic_records.made_up
        return array if is_ours else original(array)

    return from_numpy


def _replacing_missing_files(make: Callable[[Any], Any], warn: Callable[[str], None]) -> Callable[[Any], Any]:
    def wrap(original: Any) -> Any:
        def load(file: Any, *args: Any, **kwargs: Any) -> Any:
            if not placeholders.is_placeholder(file):
                with contextlib.suppress(*MISSING_FILE):
                    return original(file, *args, **kwargs)
            made = make(file)
            warn(f"`{file}`")
            synthetic_records.made_up.append(str(file))
            return made

        return load

    return wrap
