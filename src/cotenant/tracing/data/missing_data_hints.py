"""What to do about an error that says that data are not on this machine, with an example of the right kind."""

from __future__ import annotations

import os
import re
import sys
import traceback
import types
from collections.abc import Container, Sequence
from pathlib import Path

from cotenant.tracing import script_location
from cotenant.tracing.data import empty_listings
from cotenant.tracing.data.graphs import synthetic_graphs
from cotenant.tracing.data.images import image_files, synthetic_torchvision
from cotenant.tracing.data.sample_paths import MISSING_FILE
from cotenant.tracing.data.tables import synthetic_records
from cotenant.tracing.patches import missing_weights

_MISSING_WORDS = (
    "not found", "offline", "couldn't find", "couldn't reach", "no such file", "doesn't exist", "out of reach",
    "path.exists(", "path.isdir(", "path.isfile(", "does not exist", "num_samples=0", "no images", "is empty",
    "cannot connect to host", "empty 'data_files'", "no vectors found", "unable to locate credentials",
)  # fmt: skip
"""Parts of messages, and of failed assertions, that say that data are missing."""
_OTHER_FILES = (
    ("a font", re.compile(r"\.[to]tf\b|truetype|(?<![a-z])fonts?(?![a-z])")),
    ("a library", re.compile(r"\.so\b|libmpi|shared (?:object|library)")),
    ("a part of the model", re.compile(r"vocab|tokenizer|merges\.txt|\.bpe\b|spiece|sentencepiece")),
    ("a configuration", re.compile(r"\.ya?ml\b|\.toml\b|config\.json")),
)
"""What is missing, by words of the message, where it is not data."""
_NAMES_DATA = re.compile(r"\bdata ?set '")
"""Of a message that quotes the name of a data set, which a configuration may describe: `Dataset 'coco8.yaml' error`."""
_PICKLES = re.compile(r"\.(?:pkl|pickle|mat|npz|joblib)\b")
_KINDS = (
    (re.compile(r"\.(?:wav|flac|mp3|ogg|m4a|opus)\b"), "160000:float32", "10 s of audio at 16 kHz"),
    (re.compile(r"\.(?:jpe?g|png|bmp|tiff?|webp)\b"), "3x224x224:uint8:1000", "images of 1,000 classes"),
    (re.compile(r"\.(?:off|ply|pts|pcd|h5|hdf5)\b"), "1024x3:float32:40", "clouds of 1,024 points, 40 classes"),
    (re.compile(r"\.(?:bin|tsv|jsonl|tokens|raw|text)\b"), "1024:int64:50257", "texts of 1,024 tokens"),
)
"""Samples by the suffix of what is missing."""
_LIBRARIES = (
    (("librosa", "soundfile", "torchaudio", "python_speech_features"), _KINDS[0]),
    (("torchvision", "PIL", "cv2", "skimage", "imageio"), _KINDS[1]),
    (("transformers", "tokenizers", "tiktoken", "torchtext", "nltk", "jieba"), _KINDS[3]),
    (("pandas",), (None, "7:float32", "tables of 7 columns of numbers")),
)
"""Samples by the libraries that the script's own files name."""
_DEFAULT = (
    None,
    _KINDS[1][1],
    f"for images; `{_KINDS[3][1]}` for {_KINDS[3][2]}, `{_KINDS[0][1]}` for {_KINDS[0][2]}, `7:float32` for a table",
)
"""Where nothing says which kind of data it is."""
_OWN_ERRORS = (AssertionError, ValueError, RuntimeError, LookupError)
_PATH = re.compile(r"(?:~|\.{0,2})/[\w./+-]+|[\w.+-]+(?:/[\w.+-]+){2,}/?|[\w.+-]+/[\w+-]+\.\w+")
_SAYS_MISSING = re.compile(r"\b(?:no|not|missing|empty|without|cannot|could)\b", re.IGNORECASE)
"""Of a message: `No trajectories detected at buffers/CIFAR100`."""
_ARRAYS = (".npy", ".pt", ".pth")
_ARCHIVES = (".npz", ".mat")
_NAMED_FILES = 3
_OTHER_SHAPE = re.compile(
    r"sizes? of tensor|target size|same (?:shape|size)|shapes? |mat1 and mat2|too many indices|dimension|channels"
    r"|broadcast|values to unpack|tuple index out of range|OpenCV\(.*Assertion failed",
    re.IGNORECASE,
)
"""Of messages about arrays whose shapes do not go together."""
_NOTHING_KEPT = "num_samples=0"
"""Of the message of a loader without samples. Source: torch/utils/data/sampler.py, `RandomSampler.__init__`."""


def missing_part_hint(error: BaseException) -> str | None:
    """What to do about an error that a part of a model made that is not here; None for another error."""
    part = missing_weights.missing_part(error)
    how = "fetch it once with `--allow-network`, or name a folder of this machine that has it"
    return f"{part} is not on this machine: {how}" if part else None


def missing_data_hint(error: BaseException, synthetic_data: Sequence[str]) -> str | None:
    """What to do about an error that says that data are not on this machine; None for another error."""
    if missing_weights.is_missing_model(error):
        return (
            "is it of a model that is not on this machine (a configuration, a tokenizer, weights)? fetch it once with "
            "`--allow-network`, or name a folder of this machine that has it"
        )
    words = f"{type(error).__name__}: {error} {script_location.failed_assertion(error)}".lower()
    is_missing = isinstance(error, (*MISSING_FILE, ConnectionError)) or any(part in words for part in _MISSING_WORDS)
    if not is_missing or isinstance(error, NotImplementedError):
        return _made_up_hint(error) or _absent_path_hint(error) or _listing_hint(error, synthetic_data)
    other = next((what for what, pattern in _OTHER_FILES if pattern.search(words)), None)
    if other is not None and not _NAMES_DATA.search(words):
        return f"{other} is not on this machine: install it, or fetch it as for the job"
    if synthetic_data and synthetic_records.made_up and _NOTHING_KEPT in words:
        return (
            f"{made_up_files()} had to be made up, and the script keeps none of its rows: does it leave out long "
            "ones? a shorter sample of `--synthetic-data` makes shorter ones; or make a small one of its form available"
        )
    if _NOTHING_KEPT in words and (hint := _listing_hint(error, synthetic_data)):
        return hint
    if synthetic_data:
        why = "its writer alone knows its content" if _PICKLES.search(words) else "its form is not known"
        return (
            "`--synthetic-data` replaces what well-known libraries load, and what the script's code says the form of, "
            f"not this file ({why}): make it available, or a small one of the same form"
        )
    sample, what = _of_known_data_set(error) or example(words, _libraries_of_script(error))
    return f"are data missing on this machine? add `--synthetic-data {sample}` ({what}), with your samples' shape"


def _of_known_data_set(error: BaseException) -> tuple[str, str] | None:
    """The sample of a data set of torchvision or PyTorch Geometric of known size, whose construction raised it."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        kind = type(script_location.local_value(frame, "self"))
        if frame.f_code.co_name == "__init__" and (sample := synthetic_torchvision.known_sample(kind)) is not None:
            return synthetic_torchvision.sample_text(sample), f"images of {kind.__name__}"
        if frame.f_code.co_name == "_download":
            nodes = synthetic_graphs.known_sample(frame.f_locals.get("self"))
            return (nodes, "with as many nodes and edges as are published") if nodes else None
    return None


def _libraries_of_script(error: BaseException | None) -> set[str]:
    """Libraries that the script's own files name; what other libraries import says nothing of its data."""
    spaces = [vars(module) for module in list(sys.modules.values()) if isinstance(module, types.ModuleType)]
    raised = error.__traceback__ if error is not None else None
    spaces += [frame.f_globals for frame, _ in traceback.walk_tb(raised)]  # the main module's, too
    found = set()
    for space in spaces:
        path = space.get("__file__")
        if not isinstance(path, str) or not script_location.is_user_file(path):
            continue
        for value in list(space.values()):
            name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
            if isinstance(name, str) and name != space.get("__name__"):
                found.add(name.partition(".")[0])
    return found


def _made_up_hint(error: BaseException) -> str | None:
    """What else may be the cause of an error of a lookup or a conversion: a file that was made up."""
    kinds = (LookupError, ValueError, AssertionError, TypeError, ArithmeticError)
    is_of_shapes = _OTHER_SHAPE.search(str(error)) is not None
    if is_of_shapes and (hint := _shape_hint()):
        return hint
    if not synthetic_records.made_up or not (isinstance(error, kinds) or is_of_shapes):
        return None
    archive = next((path for path in synthetic_records.made_up if path.endswith(_ARCHIVES)), None)
    if archive is not None and isinstance(error, LookupError):
        name = error.args[0] if isinstance(error, KeyError) and error.args else "NAME"
        return (
            f"`{archive}` had to be made up: describe each of its arrays, as in "
            f"`--synthetic-data {Path(archive).name}/{name}=SHAPE:DTYPE`, or make it available"
        )
    wanted = "if the script wants more of it, make it available, or a small one of its form"
    array = next((path for path in synthetic_records.made_up if path.endswith(_ARRAYS)), None)
    if "state_dict" in str(error):
        wanted = "is it a checkpoint that an earlier command writes? run that first, or make one available"
    elif array is not None and (isinstance(error, (IndexError, ValueError)) or "OpenCV(" in str(error)):
        wanted = f"give its shape with `--synthetic-data {_common_part(array)}=SHAPE:DTYPE`, or make it available"
    return f"{made_up_files()} had to be made up: {wanted}"


def _absent_path_hint(error: BaseException) -> str | None:
    """What to do about an error of the script's own whose message names a path that is not there."""
    absent = absent_path(error)
    return absent and (
        f"`{absent}` is not on this machine: does an earlier command make it? make it available, or a small one of its "
        "form"
    )


def _listing_hint(error: BaseException, synthetic_data: Sequence[str]) -> str | None:
    """What to do about an error that may come from folders without the files that the script looks for in them."""
    kinds = (*_OWN_ERRORS, ArithmeticError, TypeError, UnboundLocalError, StopIteration)
    return empty_listing_hint(synthetic_data, error) if isinstance(error, kinds) else None


def empty_listing_hint(synthetic_data: Sequence[str], error: BaseException | None = None) -> str | None:
    """What to do about folders without the files that the script looks for in them; None if it found all."""
    listed = list(dict.fromkeys(empty_listings.places))[:_NAMED_FILES]
    if not listed:
        return None
    where = f"the script finds no files of the kind that it wants in {', '.join(f'`{path}`' for path in listed)}"
    if synthetic_data:
        return f"{where}: make a few available there, of its form"
    sample, what = example(" ".join(listed).lower(), _libraries_of_script(error))
    return (
        f"{where}: are data missing on this machine? add `--synthetic-data {sample}` ({what}), with your samples' shape"
    )


def absent_path(error: BaseException) -> str | None:
    """The path that the message of an error says to be missing, and that is; None without one."""
    if not isinstance(error, _OWN_ERRORS) or not _SAYS_MISSING.search(str(error)):
        return None
    words = (word.strip("'\"`,.:;()[]") for word in str(error).split())
    return next((word for word in words if _PATH.fullmatch(word) and not os.path.lexists(word)), None)


def _shape_hint() -> str | None:
    """What to do where things that differ in shape had to be made up of one sample; None where only one was made."""
    made = map(Path, synthetic_records.made_up)
    of_folders = (*image_files.IMAGES, *_ARRAYS)
    folders = [path.parent.name if path.suffix.lower() in of_folders else path.name for path in made]
    names = list(dict.fromkeys(synthetic_records.common_arrays)) or [
        name for name in dict.fromkeys(folders) if "." not in name
    ]
    if len(names) < 2:
        return None
    shown = names[-_NAMED_FILES:]
    return (
        f"{', '.join(f'`{name}`' for name in shown)} had to be made up, all of one shape: describe what has another "
        f"by a part of its name, as in `--synthetic-data {shown[-1]}=SHAPE:DTYPE`"
    )


def _common_part(path: str) -> str:
    """The part of a file's name that files of its kind have: `.mel.npy` of `12.mel.npy`, else the whole name."""
    name = Path(path).name
    suffixes = "".join(Path(path).suffixes)
    return suffixes if len(Path(path).suffixes) > 1 else name


def made_up_files() -> str:
    """The first files that had to be made up; empty if none had."""
    made = list(dict.fromkeys(synthetic_records.made_up))[:_NAMED_FILES]
    return ", ".join(f"`{path}`" for path in made)


def example(words: str, loaded: Container[str]) -> tuple[str, str]:
    """A value of `--synthetic-data` for what a message names, else for libraries that are `loaded`, and its meaning."""
    by_name = next((kind for kind in _KINDS if kind[0].search(words)), None)
    by_library = next((kind for names, kind in _LIBRARIES if any(name in loaded for name in names)), _DEFAULT)
    _, sample, what = by_name or by_library
    return sample, what
