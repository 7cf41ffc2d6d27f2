"""Data sets that `datasets` saved to a folder whose tables are not on this machine: a clone without its large files.

The folder's `dataset_info.json` says the columns and their types, so the table that is made has exactly those. A text
has as many words as the synthetic sample has numbers; the texts of a list share them.
Source: datasets/arrow_dataset.py, `Dataset.load_from_disk`; datasets/dataset_dict.py, `DatasetDict.load_from_disk`.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cotenant.tracing.data.data_options import CLASSES, SyntheticSample
from cotenant.tracing.data.tables.column_values import ColumnMaker, kind_of
from cotenant.tracing.data.tables.synthetic_hf_datasets import LoadedTables, text_rows
from cotenant.tracing.data.tables.synthetic_records import made_up
from cotenant.tracing.patches.registry import Patch, Phase

_INFO, _SPLITS = "dataset_info.json", "dataset_dict.json"
_LISTS = ("Sequence", "List", "LargeList")  # of `datasets`; the first until version 3, the others from 4 on
_ITEMS = 4  # of a list of texts: the choices of a question
_CHOICES = ("choice", "choices", "options")
_ANSWER = "answer"
_DAMAGED = (ValueError, LookupError, TypeError, AttributeError, OSError, RecursionError)
"""What a description raises that is no JSON, has other values, or names its own folder as a split."""
_CONTEXT, _BESIDE_CONTEXT = "context", 16
"""A column of long texts, and of how many parts of its length the questions and choices about it are."""


def patches(samples: Sequence[SyntheticSample], tables: LoadedTables, warn: Callable[[str], None]) -> list[Patch]:
    """The methods that load such a folder; `datasets.load_from_disk` calls them."""
    return [
        Patch(
            target=f"{module}.load_from_disk", phase=Phase.DATA, wraps=True,
            replacement=functools.partial(_loading, samples, tables, warn),
            reason="The folder's tables are missing.", source=f"datasets/{file}, `load_from_disk`",
        )
        for module, file in (
            ("datasets.arrow_dataset:Dataset", "arrow_dataset.py"),
            ("datasets.dataset_dict:DatasetDict", "dataset_dict.py"),
        )
    ]  # fmt: skip


def saving_in_this_process(original: Any) -> Any:
    """`Dataset.save_to_disk`, which starts no other processes."""

    @functools.wraps(original)
    def save_to_disk(self: Any, *args: Any, **kwargs: Any) -> None:
        shards = kwargs.get("num_shards") or kwargs.get("num_proc")
        original(self, *args, **{**kwargs, "num_proc": None, **({"num_shards": shards} if shards else {})})

    return save_to_disk


def _loading(
    samples: Sequence[SyntheticSample], tables: LoadedTables, warn: Callable[[str], None], original: Any
) -> Any:
    @functools.wraps(original)
    def load_from_disk(path: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(path, *args, **kwargs)
        except FileNotFoundError:
            try:
                made = _made(sys.modules["datasets"], ColumnMaker.of(samples), Path(os.fspath(path)))
            except _DAMAGED:
                made = None
            if made is None:
                raise
        warn(f"the data set `{path}`")
        made_up.append(str(path))
        tables.synthetic += 1
        return made

    return staticmethod(load_from_disk)


def _made(module: Any, maker: ColumnMaker, folder: Path) -> Any:
    """The table of a folder, or those of its splits; None where it does not say its columns."""
    if (folder / _SPLITS).exists():
        splits = {name: _made(module, maker, folder / name) for name in json.loads(_text(folder / _SPLITS))["splits"]}
        return None if None in splits.values() else module.DatasetDict(splits)
    if not (folder / _INFO).exists():
        return None
    features = module.Features.from_dict(json.loads(_text(folder / _INFO)).get("features") or {})
    if not features:
        return None
    return module.Dataset.from_dict(columns_of(features, maker, text_rows(maker)), features=features)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def columns_of(features: Mapping[str, Any], maker: ColumnMaker, rows: int) -> dict[str, list[Any]]:
    """So many values of each column, by its type. An answer is one of the row's choices, where it has some."""
    short = {"question", _ANSWER, *_CHOICES} if _CONTEXT in features else set()
    parts = {name: _BESIDE_CONTEXT if name in short else 1 for name in features}
    columns = {
        name: [_value(kind, maker, name, row, parts[name]) for row in range(rows)] for name, kind in features.items()
    }
    choices = next((columns[name] for name in _CHOICES if name in columns), None)
    if choices is not None and isinstance(choices[0], list) and isinstance(columns.get(_ANSWER, [None])[0], str):
        columns[_ANSWER] = [items[0] for items in choices]
    return columns


def _value(feature: Any, maker: ColumnMaker, name: str, row: int, parts: int = 1) -> Any:
    kind = type(feature).__name__
    if isinstance(feature, Mapping):
        known = maker.value(name, row) if kind_of(name) == "answers" else {}
        return {key: known.get(key) or _value(part, maker, key, row, parts) for key, part in feature.items()}
    if isinstance(feature, list) or kind in _LISTS:
        return _values(feature, maker, name, row, parts)
    if kind == "ClassLabel":
        return row % max(1, feature.num_classes)
    if kind == "Value":
        return _scalar(feature.dtype, maker, name, row, parts)
    if kind.startswith("Translation"):
        return dict.fromkeys(feature.languages, maker.words(row=row))
    return maker.value(name, row)  # an image, a recording


def _values(feature: Any, maker: ColumnMaker, name: str, row: int, parts: int) -> Any:
    """The items of a list: a tag or number for each word, the messages of a chat, or a few texts."""
    inner = feature[0] if isinstance(feature, list) else feature.feature
    if isinstance(inner, Mapping):
        if kind_of(name) == "chat":
            return [{key: message.get(key, "") for key in inner} for message in maker.value(name, row)]
        item = _value(inner, maker, name, row, parts)
        if type(feature).__name__ != "Sequence":
            return [item]
        # A sequence of rows is a row of lists. Source: datasets/features/features.py, `Sequence`.
        return {key: value if isinstance(value, list) else [value] for key, value in item.items()}
    is_text = type(inner).__name__ == "Value" and "string" in inner.dtype
    if is_text and kind_of(name) != "words":
        return [_value(inner, maker, name, row, parts * _ITEMS) for _ in range(_ITEMS)]
    words = maker.words(parts, row).split()
    if is_text:
        return words
    length = getattr(feature, "length", -1)
    return [_value(inner, maker, name, at) for at in range(length if length > 0 else len(words))]


def _scalar(dtype: str, maker: ColumnMaker, name: str, row: int, parts: int) -> Any:
    if "string" in dtype:
        return str(row) if kind_of(name) == "row" else maker.words(parts, row)
    if dtype.startswith("float"):
        return 1.0
    if dtype == "bool":
        return row % 2 == 0
    if not dtype.startswith(("int", "uint")):
        return None  # a date
    return row if kind_of(name) == "row" else row % CLASSES
