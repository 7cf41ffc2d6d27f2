"""Images and texts that a script finds, lists or opens by itself and that are not on this machine.

Only paths that look like data are made: images for a synthetic sample of three dimensions, texts for one of whole
numbers and one dimension, with as many different words as the sample has classes. A listed folder has many names of one
image; each begins with a class, as in `3_17.jpg`. Files are made in the overlay.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from cotenant.tracing import script_location
from cotenant.tracing.data import missing_folders, placeholders
from cotenant.tracing.data.data_options import (
    CLASSES,
    MIN_AUDIO_SAMPLES,
    SyntheticSample,
    first_image,
    first_text,
    recordings_and_rows,
)
from cotenant.tracing.data.files.folder_sizes import FILES, files_of
from cotenant.tracing.data.images import (
    box_lists,
    celeba_lists,
    image_files,
    nerf_cameras,
    voc_lists,
    wider_lists,
    yolo_lists,
)
from cotenant.tracing.data.sample_paths import is_of_masks, sample_at, samples_for_all
from cotenant.tracing.data.static_analysis import class_folders, image_names, listed_suffixes
from cotenant.tracing.data.tables.synthetic_records import made_up
from cotenant.tracing.data.text import text_contents
from cotenant.tracing.sandbox.overlay import Overlay

_IMAGES_OF_INNER = 20  # of a folder in a folder of a class: a character of an alphabet has as many
_MAX_LINKS = 50_000  # of one file: ext4 has at most 65,000
_MAX_SERIES = 4  # sequences of images, one for each number in a pattern
_HDF5_SUFFIXES = (".h5", ".hdf5")
_SCANS = placeholders.SUFFIXES - set(_HDF5_SUFFIXES)  # HDF5: see `names_matching`
_RECORDING_SUFFIXES = (".wav", *sorted(placeholders.RECORDINGS - {".wav"}))
_WILD = r"\[.*?\]|[*?]+"
_DATA_NAME = re.compile(
    r"data|corpus|train(?!ed)|valid|val\b|(?<![a-z])val(?=\d)|test|image|img|jpe?g|frames|input|wav|audio|video|(?<![a-z])masks?\b",
    re.IGNORECASE,
)
_OTHER_NAME = re.compile(
    r"(?<![a-z])out(?!door)|result|checkpoint|ckpt|(?<![a-z])save|cache|vocab|weight|merges|requirement|readme|config"
    r"|experiment|resume|pytorch_model|(?<![a-z])(?:states?|logs?|samples?)(?![a-z])",
    re.IGNORECASE,
)
_OUTPUT_NAME = re.compile(
    r"(?<![a-z])(?:models?|fig(?:ure)?s?|plots?|visual\w*|backups?|history|pretrained\w*|runs?|exps?|predict\w*"
    r"|generated?)(?![a-z])",
    re.IGNORECASE,
)
"""What scripts write, too: a name that looks like nothing at all may be that of data."""
_ELSEWHERE = re.compile(r"[A-Za-z]:[/\\]|/(?!(?:tmp|var|dev|proc|sys|run|etc|usr|opt)/)")
"""Absolute paths, of Windows too, but for folders of the system."""
_SUFFIX = ".jpg"  # of images whose suffix the script does not name
_LOSSY = (".jpg", ".jpeg", ".webp")  # they change the numbers of masks
_LINE_FILES = (".jsonl", ".txt", ".jsonl.gz")
"""Files that scripts read a line at a time: of rows or texts, unless their name says something else."""
_LIST_NAME = re.compile(r"class|label|categor|names|synset|tags|word|token|glove|embed|\.vec", re.IGNORECASE)
"""Of files whose number of lines is a size of the model."""
_ROW_NAME = re.compile(r"\d{6}(?:\.\w+)+")
_PLACEHOLDERS = (".keep", ".gitkeep", ".gitignore", ".placeholder")
_SYNTHESIZED = ("/timm/", "/torchvision/", "/datasets/")  # libraries whose data sets are synthetic as a whole


class FileMaker:
    """Makes what is missing; its methods say whether they made something. `warn`: is called with its name."""

    def __init__(self, samples: Sequence[SyntheticSample], overlay: Overlay, warn: Callable[[str], None]) -> None:
        common = samples_for_all(samples)
        self._samples = samples
        self._image, self._text = first_image(common), first_text(common)
        numbers = recordings_and_rows(common)
        self._has_recording = bool(numbers)
        self._classes = next((sample.classes for sample in (self._image, *numbers) if sample is not None), 0)
        self._videos = placeholders.VIDEOS if self._image is not None else frozenset()
        recordings = placeholders.RECORDINGS if numbers else frozenset()
        self._placeholders = placeholders.SUFFIXES | recordings | self._videos
        self._columns = next((line.shape[0] for line in numbers if line.shape[0] < MIN_AUDIO_SAMPLES), 0)
        self._overlay = overlay
        self._warn = warn
        self._texts: set[str] = set()
        self._wanted: list[str] = []
        self._listed: set[str] = set()
        self._stems_of_class: dict[str, list[str]] = {}  # of images in folders of classes, without suffixes
        self._links = 0
        self._series = Counter[str]()  # patterns, without their numbers, of loops that end where nothing matches
        self._roots: set[tuple[str | None, str]] = set()  # folders, and beginnings of names that were made in them

    def make_matching(self, pattern: str) -> bool:
        """Make images, or arrays, that match a pattern of `glob`: many for `*.jpg`, one for `7_mask.*`."""
        folder, name = os.path.split(pattern)
        if name.endswith(".xml"):
            return self._make_annotations(folder)
        if name == "*" and not re.search(_WILD, folder) and class_folders.caller_expects_folders():
            return self.fill(folder)
        if not name and self._holds_files(str(Path(folder).parent)):  # a loop over `*/` ends at the last folder
            return False
        stem = name[: len(name) - len(placeholders.suffix_of(name))]
        suffix = _SUFFIX if name[len(stem) :] in ("", ".*") else name[len(stem) :]
        folder = _matching_text(folder)
        is_known = suffix.lower() in image_files.LISTED | self._videos | _SCANS and not set(stem) & set("?[")
        if not is_known or not (self._is_of_files(folder) or self._is_absent_folder(folder)):
            return False
        if class_folders.caller_ends_at_absence():
            series = re.sub(r"\d+", "0", pattern)
            self._series[series] += 1
            if self._series[series] > _MAX_SERIES:
                return False
        if "*" not in stem:
            return self._make_images(folder, suffix, [stem])
        names = [re.sub(r"\*+", name, stem) for name in self._stems(folder, suffix)]
        self._roots.update((self._overlay.path_of(folder), name.rpartition("_")[0]) for name in names)
        return self._make_images(folder, suffix, names)

    def _holds_files(self, folder: str) -> bool:
        full = self._overlay.path_of(folder)
        names = self._overlay.names(full) if full is not None and self._overlay.exists(full) else []
        return not all(map(is_empty_folder_file, names))

    def _stems(self, folder: str, suffix: str) -> list[str]:
        """Names for the images of a folder, without suffixes: those of the images that were made in it, if any."""
        full = self._overlay.path_of(folder)
        names = self._overlay.names(full) if full is not None and self._overlay.exists(full) else []
        made = {Path(name).stem for name in names if Path(name).suffix in (_SUFFIX, ".ppm")}
        if suffix == image_files.FLOW and made:  # one between two images
            return sorted(made)[::2]
        count = FILES if self._image is None else files_of(self._image.shape, suffix, folder)
        # Masks are in folders that are named after the classes, too: as many as images.
        of_class = self._stems_of_class.get(Path(folder).name)
        return sorted(made) or of_class or image_names.names(count, max(1, self._classes), suffix)

    def names_matching(self, pattern: str) -> list[str]:
        """Names that match a pattern of `glob` and whose reader makes them when opened: recordings, an HDF5 file."""
        is_recording = pattern.lower().endswith(_RECORDING_SUFFIXES) and self._has_recording
        if not (is_recording or pattern.lower().endswith(_HDF5_SUFFIXES)) or not self.is_data(
            str(Path(pattern).parent)
        ):
            return []
        folder, name = os.path.split(pattern)
        folder, count = _matching_text(folder), FILES if is_recording and re.search(_WILD, name) else 1
        return [os.path.join(folder, re.sub(_WILD, str(index), name)) for index in range(count)]  # noqa: PTH118 - texts

    def fill(self, folder: str, *, is_needed: bool = False) -> bool:
        """Fill a folder with images if it is missing, or was made because an argument names it.

        `is_needed`: the listing raises where there is none, so the name of the folder need not look like data.
        """
        full = self._overlay.path_of(folder)
        if full is None or class_folders.caller_handles_absence():
            return False
        if not self._overlay.exists(full) and self._make_annotations(folder):
            return True
        if not (self._is_of_files(folder) or (is_needed and self._is_absent_folder(folder))):
            return False
        suffix = listed_suffixes.wanted_suffix(image_files.LISTED | self._placeholders, self._usual_suffix())
        if self._is_listed_file(full):  # the names that were listed are folders
            Path(self._overlay.above(full)).unlink()
            return self._make_images(folder, suffix, self._stems(folder, suffix)[:_IMAGES_OF_INNER], is_quiet=True)
        if self._overlay.exists(full):
            names = self._overlay.names(full)
            if not all(map(is_empty_folder_file, names)) or not (names or self._is_made(full)):
                return False
        if not class_folders.caller_expects_folders():
            return self._make_images(folder, suffix, listed_suffixes.marked(self._stems(folder, suffix), suffix))
        labels = class_folders.names_of_folders(folder, self._classes)
        stems = [str(index) for index in range(max(1, FILES // max(1, len(labels))))]
        made = [self._make_images(f"{folder}/{label}", suffix, stems) for label in labels]
        self._stems_of_class.update(dict.fromkeys(labels, stems))
        return any(made)

    def _is_listed_file(self, full: str) -> bool:
        return Path(full).name in self._listed and Path(self._overlay.above(full)).is_file()

    def _usual_suffix(self) -> str:
        """Of files in a folder, where the script names none."""
        return _RECORDING_SUFFIXES[0] if self._image is None and self._has_recording else _SUFFIX

    def make_folder(self, folder: str) -> bool:
        """Make a folder that is missing below one that an argument names, and that was made for it.

        Another one is made where the script raises without it, or downloads it, and its path looks like data.
        """
        full = self._overlay.path_of(folder)
        if full is None or Path(full).suffix or self._overlay.exists(full):
            return False
        is_below = self._is_made(str(Path(full).parent))
        is_expected = script_location.is_absence_an_error() or class_folders.caller_downloads_what_is_absent()
        is_wanted = self._image is not None and is_expected and self.is_data(folder)
        if not is_below and not is_wanted:
            return False
        Path(self._overlay.above(full)).mkdir(parents=True)
        if not is_below:
            self._wanted.append(full)
        return True

    def make_text(self, path: str, *, for_question: bool = False) -> bool:
        """Make a text, or a file of rows or tokens, that is missing.

        `for_question`: the script asks whether it is there, and may make rows or tokens itself where they are not.
        """
        full = self._overlay.path_of(path)
        has_text, columns = self._text is not None, 0 if self._text is not None else self._columns
        if full is None or not text_contents.is_known(path, has_text=has_text, has_numbers=columns > 0):
            return False
        if for_question and not (text_contents.is_words(path) or script_location.is_absence_an_error()):
            return False
        is_argument = missing_folders.is_named_file(path, sys.argv[1:]) and not _OTHER_NAME.search(path)
        is_wanted = is_argument or (not for_question and self._is_wanted_text(path))
        if not (self.is_data(path) or (is_wanted and self._overlay.captures_all)) or self._overlay.exists(full):
            return False
        vocabulary = self._text.classes if self._text is not None else CLASSES
        target, reader = self._overlay.new_file(full), script_location.opening_frame()
        text_contents.write(target, path, vocabulary, columns, reader)
        self._texts.add(full)
        made_up.append(path)
        self._warn(f"`{path}`")
        return True

    def _is_wanted_text(self, path: str) -> bool:
        """Whether a file of lines is opened by a script that fails without it, whatever its name says of data."""
        name = Path(path).name
        is_other = _OTHER_NAME.search(path) or _LIST_NAME.search(name) or missing_folders.is_named(path, sys.argv[1:])
        is_lines = self._text is not None and name.endswith(_LINE_FILES) and not is_other
        return is_lines and not class_folders.opener_handles_absence()

    def is_text(self, path: object) -> bool:
        """Whether a file was made as a text."""
        return isinstance(path, str) and path.removeprefix(self._overlay.upper) in self._texts

    def make_image(self, path: str) -> bool:
        """Make an image that is missing, by its own name: a list of names is there, the images are not."""
        full, name = self._overlay.path_of(path), Path(path)
        if full is None or name.suffix.lower() not in image_files.IMAGES or not self._is_of_files(path):
            return False
        return not self._overlay.exists(full) and self._make_images(str(name.parent), name.suffix, [name.stem])

    def make_wanted_image(self, path: str) -> bool:
        """Make an image or a placeholder where the script raises without it, or tries others until it finds one."""
        is_wanted = script_location.is_absence_an_error() or script_location.calling_text().startswith("while not ")
        return is_wanted and (self.make_image(path) or self._make_placeholder(path))

    def make_named_file(self, path: str) -> bool:
        """Make an image or a placeholder that a made-up list or table names, where the script asks for it."""
        return self.is_row_name(path) and (self.make_image(path) or self._make_placeholder(path))

    def is_row_name(self, path: str) -> bool:
        """Whether a file has a name as made-up lists and tables have them; pandas may ask for it, row by row."""
        return bool(made_up) and _ROW_NAME.fullmatch(Path(path).name) is not None

    def _make_placeholder(self, path: str) -> bool:
        full, suffix = self._overlay.path_of(path), placeholders.suffix_of(path)
        if full is None or suffix not in self._placeholders or not self.is_data(path) or self._overlay.exists(full):
            return False
        folder, name = os.path.split(path)
        return self._make_images(folder, suffix, [name[: -len(suffix)]])

    def make_dataset(self, path: str) -> bool:
        """Make a data set of YOLO, VOC or NeRF, a list of boxes, faces or CelebA: a path is of its list or folder."""
        full = self._overlay.absent(path)
        if full is None or self._image is None:
            return False
        makers = (
            (voc_lists.is_voc_list, voc_lists.make),
            (self.is_yolo, yolo_lists.make),
            (nerf_cameras.is_camera_list, nerf_cameras.make),
            (lambda path: self.is_data(path) and wider_lists.is_face_list(path), wider_lists.make),
            (celeba_lists.is_celeba_list, celeba_lists.make),
            (lambda path: self.is_data(path) and box_lists.is_box_list(path), box_lists.make),
        )
        make = next((make for is_kind, make in makers if is_kind(path)), None)
        return make is not None and make(full, self._overlay, self._image, self._make_images)

    def _make_annotations(self, folder: str) -> bool:
        """Make PASCAL VOC where a script lists its annotations, and not one of its lists."""
        is_voc = Path(folder).name == voc_lists.ANNOTATIONS
        return is_voc and self.make_dataset(str(Path(folder).parent / voc_lists.LIST))

    def is_yolo(self, path: str) -> bool:
        """Whether a path is of a data set of YOLO, and a script or the package ultralytics looks for it."""
        is_reader = script_location.is_called_by_user() or "/ultralytics/" in script_location.calling_file()
        return is_reader and yolo_lists.is_yolo_data(path)

    def make_counterpart(self, path: str) -> bool:
        """Make an image or an array by the name of one that was listed in another folder, as those of masks are.

        Or in its own folder, where names differ behind the last `_`: `3_img1.ppm` beside `3_flow.flo`.
        """
        full, name = self._overlay.path_of(path), Path(path)
        if full is None or self._overlay.exists(full) or not self.is_data(path):
            return False
        is_beside = (str(Path(full).parent), name.stem.rpartition("_")[0]) in self._roots
        if name.name not in self._listed and not (is_beside and name.suffix.lower() in image_files.IMAGES):
            return False
        suffix = name.name[-len(placeholders.suffix_of(path)) :] if name.suffix else ""
        return self._make_images(str(name.parent), suffix, [name.name.removesuffix(suffix)])

    def is_data(self, path: str) -> bool:
        """Whether a path looks like data, or is below a folder that an argument names."""
        full = self._overlay.path_of(path)
        if full is None or not self._overlay.captures_all:
            return False
        return self._is_made(full) or bool(_DATA_NAME.search(path) and not _OTHER_NAME.search(path))

    def may_be_data(self, path: str) -> bool:
        """Whether nothing in a path says that it is no data; absent folders of the system have none."""
        is_of_system = path.startswith("/") and not (_ELSEWHERE.match(path) or path.startswith(f"{self._overlay.cwd}/"))
        is_free = self._overlay.captures_all and self._overlay.path_of(path) is not None and not is_of_system
        return self.is_data(path) or (is_free and not (_OTHER_NAME.search(path) or _OUTPUT_NAME.search(path)))

    def _is_absent_folder(self, folder: str) -> bool:
        """Whether a script wants images of a folder that does not exist, and that is none for its own output."""
        full = self._overlay.path_of(folder)
        return full is not None and not self._overlay.exists(full) and self.may_be_data(folder)

    def _is_of_files(self, path: str) -> bool:
        """Whether a path is of data for what lists folders or opens images: also a folder of the author's machine."""
        is_elsewhere = _ELSEWHERE.match(path) is not None and not path.startswith(f"{self._overlay.cwd}/")
        is_ours = is_elsewhere and self._overlay.captures_all and self._overlay.path_of(path) is not None
        return self.is_data(path) or (is_ours and not _OTHER_NAME.search(path))

    def is_named(self, path: str) -> bool:
        """Whether a library lists what is, or is below, a folder that does not exist and that an argument names."""
        caller = script_location.calling_file()
        if "site-packages" not in caller or any(name in caller for name in _SYNTHESIZED):
            return False
        full = self._overlay.path_of(path)
        return full is not None and self._is_made(full)

    def _is_made(self, full: str) -> bool:
        made = (*self._named_folders, *self._wanted)
        return any(full == folder or full.startswith(folder + os.sep) for folder in made)

    @functools.cached_property
    def _named_folders(self) -> list[str]:
        named = (os.path.expanduser(path) for path in missing_folders.data_folders(sys.argv[1:]))  # noqa: PTH111 - text
        full = (self._overlay.path_of(path) for path in named)
        return [path for path in full if path is not None and not self._overlay.is_real(path)]

    def _make_images(self, folder: str, suffix: str, stems: Sequence[str], *, is_quiet: bool = False) -> bool:
        full = self._overlay.path_of(folder)
        if full is None or not stems:
            return False
        is_placeholder = suffix.lower() in self._placeholders
        image = sample_at(
            f"{full}/{stems[0]}{suffix}", self._samples, self._samples[0] if is_placeholder else self._image
        )
        if image is None or (not image.is_image and suffix != image_files.ARRAY and not is_placeholder):
            return False
        above = Path(self._overlay.above(full))
        try:
            above.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):  # below a file that was made
            return False
        is_mask = is_of_masks(f"{full}/{stems[0]}{suffix}")
        kind = ".png" if is_mask and suffix.lower() in _LOSSY else suffix.lower()  # readers judge by the content
        self._listed.update(name + suffix for name in stems)
        for name in stems:
            if is_placeholder:
                placeholders.make(Path(above, name + suffix), os.path.join(full, name + suffix))  # noqa: PTH118 - a text
            else:
                self._links += 1
                source = self._image_file(kind, image, self._links // _MAX_LINKS)
                Path(above, name + suffix).hardlink_to(source)
        if not is_quiet:
            self._warn(f"`{folder}`")
        made_up.append(folder)
        return True

    @functools.cache  # noqa: B019 - one maker for each process
    def _image_file(self, suffix: str, image: SyntheticSample, copy: int) -> Path:
        path = Path(self._overlay.root, f"blank{'x'.join(map(str, image.shape))}{image.dtype}-{copy}{suffix}")
        path.write_bytes(image_files.file_bytes(image, suffix))
        return path


def _matching_text(pattern: str) -> str:
    """A text that matches a pattern of `glob`: of a set its first character, as in `image_0[2,3]`."""
    return re.sub(_WILD, lambda wild: re.sub(r"^\[!?\]?|\].*$|[*?]+", "", wild[0])[:1] or "0", pattern)


def is_empty_folder_file(name: str) -> bool:
    """Whether it is a file that keeps an empty folder in a repository, or a README of what to put there."""
    return name in _PLACEHOLDERS or name.upper().startswith("README")
