"""How scripts ask for files and list folders: what is missing is made with `--synthetic-data`, by `synthetic_files`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cotenant.tracing import script_location
from cotenant.tracing.data import empty_listings
from cotenant.tracing.data.data_options import SyntheticSample, first_image
from cotenant.tracing.data.files import opened_files
from cotenant.tracing.data.files.synthetic_files import FileMaker, is_empty_folder_file
from cotenant.tracing.data.images import yolo_lists
from cotenant.tracing.data.images.cifar_batches import CifarBatches, is_of_cifar
from cotenant.tracing.data.images.idx_files import IdxFiles
from cotenant.tracing.data.sample_paths import samples_for_all
from cotenant.tracing.data.tables import asked_tables
from cotenant.tracing.data.tables.synthetic_records import RecordMaker
from cotenant.tracing.data.text.character_vocabulary import CharacterVocabulary
from cotenant.tracing.data.text.molecule_files import MoleculeFiles
from cotenant.tracing.data.text.sentencepiece_files import SentencePieceFiles
from cotenant.tracing.data.text.vocabulary_files import VocabularyFiles
from cotenant.tracing.data.text.word_vectors import WordVectors
from cotenant.tracing.patches.registry import Patch, Phase
from cotenant.tracing.sandbox.overlay import Overlay

_OWN_DATA = "/timm/data/"
_LISTER = "/imutils/paths.py"
"""A library whose functions list the images of a folder, or of all below it, for the script that calls them."""


def patches(samples: Sequence[SyntheticSample], overlay: Overlay, warn: Callable[[str], None]) -> list[Patch]:
    """How scripts look for files. Libraries look for files of their own: they find data where an argument names it."""
    maker = FileMaker(samples, overlay, warn)
    records = RecordMaker(samples, overlay, warn, maker.is_data, maker.may_be_data)
    characters = CharacterVocabulary(samples, overlay, warn)
    vocabularies = VocabularyFiles(samples, overlay, warn)
    pieces = SentencePieceFiles(samples, overlay, warn)
    vectors = WordVectors(samples, overlay, warn)
    molecules = MoleculeFiles(samples, overlay, warn, maker.is_data)
    image = first_image(samples_for_all(samples))
    digits = IdxFiles(samples, overlay, warn)
    batches = CifarBatches(samples, overlay, warn)
    common: dict[str, Any] = {"phase": Phase.DATA, "wraps": True, "stacks": True, "reason": "The files are missing."}

    def before(
        *prepare: Callable[[str], bool], named: Callable[[str], bool] | None = None, lists: bool = False
    ) -> Callable[[Any], Any]:
        return functools.partial(_preparing, prepare, named, lists)

    for_asking = (
        functools.partial(yolo_lists.make_text_of_image, overlay, image),
        functools.partial(asked_tables.make, overlay, maker.is_data),
        batches.make, maker.make_dataset, maker.make_folder, vectors.make_asked,
        functools.partial(maker.make_text, for_question=True),
        maker.make_counterpart, maker.make_wanted_image, maker.make_named_file,
        characters.make, vocabularies.make_asked, pieces.make_asked, digits.make,
    )  # fmt: skip
    walking = before(maker.fill, named=maker.is_named, lists=True)
    listing = before(functools.partial(maker.fill, is_needed=True), named=maker.is_named, lists=True)
    asking = before(*for_asking, named=lambda path: maker.is_yolo(path) or maker.is_row_name(path) or is_of_cifar(path))
    return [
        *(
            Patch(target=target, replacement=function, source=source, **common)
            for target, function, source in (
                ("os:listdir", listing, "Modules/posixmodule.c, `os_listdir_impl`"),
                ("os:scandir", listing, "Modules/posixmodule.c, `os_scandir_impl`"),
                ("os:walk", walking, "Lib/os.py, `walk`"),
                ("pathlib:Path.iterdir", listing, "Lib/pathlib.py, `Path.iterdir`"),
            )
        ),
        *(
            Patch(target=target, replacement=asking, source=source, **common)
            for target, source in (
                *((f"os.path:{name}", "Lib/genericpath.py") for name in ("exists", "isdir", "isfile")),
                *((f"pathlib:Path.{name}", "Lib/pathlib.py") for name in ("exists", "is_dir", "is_file")),
            )
        ),
        Patch(
            target="glob:glob", replacement=functools.partial(_globbing, before(maker.make_matching), maker),
            source="Lib/glob.py, `glob`", **common,
        ),
        *(
            Patch(
                target=f"pathlib:Path.{name}", replacement=functools.partial(_matching_below, maker),
                source=f"Lib/pathlib.py, `Path.{name}`", **common,
            )
            for name in ("glob", "rglob")
        ),
        *pieces.patches(),
        batches.digest_patch(),
        *opened_files.patches(
            samples, overlay,
            (
                maker.make_dataset, digits.make, batches.make, vectors.make, molecules.make, records.make,
                maker.make_text, maker.make_image, characters.make, vocabularies.make,
            ),
            lambda path: records.make(path) or maker.make_text(path), maker.is_text, maker.make_image,
        ),
    ]  # fmt: skip


def _preparing(
    prepare: Sequence[Callable[[str], bool]], named: Callable[[str], bool] | None, lists: bool, original: Any
) -> Any:
    """The function, which finds what `prepare` makes of its path where it found nothing.

    `lists`: it lists a folder.
    Called by the user's files, or by a library with a path that is `named`.
    """

    @functools.wraps(original)
    def call(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
        if isinstance(path, (str, os.PathLike)):
            text = os.fsdecode(path)
            # A repository may have timm in its own files, whose data sets are synthetic as a whole, too.
            caller = script_location.calling_file()
            is_user = caller.endswith(_LISTER) or (script_location.is_user_file(caller) and _OWN_DATA not in caller)
            is_data = is_user or (named is not None and named(text))
            if is_data and not _found(original, path, args, kwargs):
                is_made = any(make(text) for make in prepare)
                if lists and is_user and not is_made:
                    empty_listings.places.append(text)
        return original(path, *args, **kwargs)

    return call


def _found(function: Any, path: Any, args: Any, kwargs: Any) -> bool:
    try:
        found = function(path, *args, **kwargs)
        if isinstance(found, bool):
            return found
        return any(not is_empty_folder_file(name) for item in found for name in _names_of(item))
    except OSError:
        return False


def _names_of(item: Any) -> Sequence[str]:
    """Names in what `os.listdir`, `os.scandir`, `os.walk`, or `Path.iterdir` gives one after another."""
    if isinstance(item, tuple):
        return [*item[1], *item[2]]
    return [os.fsdecode(getattr(item, "name", item))]


def _globbing(before: Callable[[Any], Any], maker: FileMaker, original: Any) -> Any:
    prepared = before(original)

    @functools.wraps(original)
    def glob(pattern: Any, *args: Any, **kwargs: Any) -> Any:
        found = prepared(pattern, *args, **kwargs)
        if found or not isinstance(pattern, str) or not script_location.is_called_by_user():
            return found
        found = maker.names_matching(pattern) or found
        if not found:
            empty_listings.places.append(pattern)
        return found

    return glob


def _matching_below(maker: FileMaker, original: Any) -> Any:
    @functools.wraps(original)
    def glob(self: Path, pattern: Any, *args: Any, **kwargs: Any) -> Any:
        found = list(original(self, pattern, *args, **kwargs))
        whole = os.fspath(self / os.fspath(pattern))
        if not found and script_location.is_called_by_user():
            if maker.make_matching(whole):
                found = list(original(self, pattern, *args, **kwargs))
            else:
                found = [Path(name) for name in maker.names_matching(whole)]
            if not found:
                empty_listings.places.append(whole)
        return iter(found)

    return glob
