"""Columns of synthetic Hugging Face tables that a script reads and that the table lacks, by what their name says.

Used only while every table that the script loaded is synthetic: a misspelled column of real data stays an error. A
column that the script only looks for (`"input_ids" in columns`, `row.get("weight")`) is not made.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from cotenant.tracing import script_location
from cotenant.tracing.data.tables.column_values import BOX_CLASSES, SAMPLING_RATE, ColumnMaker, kind_of
from cotenant.tracing.patches.registry import Patch, Phase

_SMALLEST_PART = 0.1
"""Of a synthetic table that a script divides."""
_MANY_ROWS = 1000
"""Rows among which every class is."""


class GrowingRow(dict[str, Any]):
    """A row, or a batch of rows, that makes the columns it lacks.

    Without `make` it is a plain one: libraries call the class of what they convert with the new values alone.
    Source: transformers/trainer.py, `Trainer._prepare_input`.
    """

    def __init__(self, values: Any = (), make: Callable[[str], Any] | None = None) -> None:
        super().__init__(values)
        self._make = make or getattr(values, "_make", None)

    def __missing__(self, name: str) -> Any:
        if self._make is None:
            raise KeyError(name)
        self[name] = self._make(name)
        return self[name]


def patches(maker: ColumnMaker, only_synthetic: Callable[[], bool]) -> list[Patch]:
    """Where `datasets` looks up a column. `only_synthetic`: whether the script has loaded no real table."""
    common: dict[str, Any] = {
        "phase": Phase.DATA,
        "wraps": True,
        "reason": "A synthetic table cannot know beforehand which columns a script reads.",
    }
    table = "datasets.arrow_dataset:Dataset"
    wrap = {
        name: functools.partial(function, maker, only_synthetic)
        for name, function in (
            ("lazy", _lazy_item),
            ("item", _item),
            ("items", _items),
            ("transform", _transforming),
            ("stream", _iterating),
            ("mapped", _mapping_stream),
        )
    }
    return [
        Patch(
            target="datasets.formatting.formatting:LazyDict.__getitem__", replacement=wrap["lazy"],
            source="datasets/formatting/formatting.py, `LazyDict.__getitem__`", **common,
        ),
        Patch(
            target="datasets.formatting.formatting:CustomFormatter.__init__", replacement=wrap["transform"],
            source="datasets/formatting/formatting.py, `CustomFormatter.format_batch`", **common,
        ),
        Patch(
            target=f"{table}.__getitem__", replacement=wrap["item"],
            source="datasets/arrow_dataset.py, `Dataset.__getitem__`", **common,
        ),
        Patch(
            target=f"{table}.__getitems__", replacement=wrap["items"],
            source="datasets/arrow_dataset.py, `Dataset.__getitems__`", **common,
        ),
        *(
            Patch(
                target=f"datasets.{module}.__iter__", replacement=wrap["stream"],
                source=f"datasets/{module.partition(':')[0]}.py, `__iter__`", **common,
            )
            for module in ("arrow_dataset:Dataset", "iterable_dataset:IterableDataset")
        ),
        *(
            Patch(
                target=f"datasets.iterable_dataset:IterableDataset.{name}", replacement=wrap["mapped"],
                source=f"datasets/iterable_dataset.py, `IterableDataset.{name}`", **common,
            )
            for name in ("map", "filter")
        ),
        Patch(
            target="datasets.iterable_dataset:IterableDataset.skip",
            replacement=functools.partial(_skipping, only_synthetic),
            source="datasets/iterable_dataset.py, `IterableDataset.skip`", **common,
        ),
        *(
            Patch(
                target=f"datasets.dataset_dict:{name}.__getitem__",
                replacement=functools.partial(_split_by_any_name, only_synthetic),
                source=f"datasets/dataset_dict.py, `{name}`", **common,
            )
            for name in ("DatasetDict", "IterableDatasetDict")
        ),
        Patch(
            target=f"{table}.remove_columns", replacement=functools.partial(_removing_known, only_synthetic),
            source="datasets/arrow_dataset.py, `Dataset.remove_columns`", **common,
        ),
        *(
            Patch(
                target=f"{table}.{name}", replacement=functools.partial(_after_adding, maker, only_synthetic),
                source=f"datasets/arrow_dataset.py, `Dataset.{name}`", **common,
            )
            for name in ("rename_column", "class_encode_column", "select_columns", "sort")
        ),
        Patch(
            target=f"{table}.features", replacement=functools.partial(_features, maker, only_synthetic),
            source="datasets/arrow_dataset.py, `Dataset.features`", **common,
        ),
        Patch(
            target="datasets.combine:concatenate_datasets", also_in="datasets",
            replacement=functools.partial(_side_by_side, only_synthetic),
            source="datasets/combine.py, `concatenate_datasets`", **common,
        ),
        Patch(
            target=f"{table}.select", replacement=functools.partial(_selecting, only_synthetic),
            source="datasets/arrow_dataset.py, `Dataset.select`", **common,
        ),
        Patch(
            target=f"{table}.train_test_split", replacement=functools.partial(_splitting, only_synthetic),
            source="datasets/arrow_dataset.py, `Dataset.train_test_split`", **common,
        ),
    ]  # fmt: skip


def _split_by_any_name(only_synthetic: Callable[[], bool], original: Any) -> Any:
    """The splits of a synthetic data set are alike, and the script knows what they are called."""

    @functools.wraps(original)
    def getitem(self: Any, key: Any) -> Any:
        is_other = isinstance(key, str) and key not in self and "train" in self and only_synthetic()
        return original(self, "train" if is_other else key)

    return getitem


def _lazy_item(maker: ColumnMaker, only_synthetic: Callable[[], bool], original: Any) -> Any:
    def getitem(self: Any, name: str) -> Any:
        try:
            found = original(self, name)
            return _decoded(name, found) if only_synthetic() else found
        except KeyError:
            # `Mapping.get` and `Mapping.__contains__` look a key up to see whether it is there.
            if not only_synthetic() or sys._getframe(1).f_globals.get("__name__") == "collections.abc":
                raise
        is_batch = type(self).__name__ == "LazyBatch"
        return maker.column(name, self.pa_table.num_rows) if is_batch else maker.value(name)

    return getitem


def _decoded(name: str, value: Any) -> Any:
    """A recording, or a batch of them, as `datasets.Audio` decodes it: a plain table has its numbers as a list."""
    if kind_of(name) != "audio":
        return value
    if isinstance(value, list):
        return [_decoded(name, part) for part in value]
    if isinstance(value, dict) and isinstance(value.get("array"), list):
        return {**value, "array": torch.tensor(value["array"], dtype=torch.float32).numpy()}
    return value


def _row(values: dict[str, Any], make: Callable[[str], Any]) -> GrowingRow:
    return GrowingRow({name: _decoded(name, value) for name, value in values.items()}, make)


def _item(maker: ColumnMaker, only_synthetic: Callable[[], bool], original: Any) -> Any:
    def getitem(self: Any, key: Any) -> Any:
        if not only_synthetic():
            return original(self, key)
        if isinstance(key, str) and key not in self.column_names:
            return maker.column(key, len(self))
        found = original(self, key)
        if type(found) is not dict:
            return found
        if isinstance(key, int):
            return _row(found, functools.partial(maker.value, row=key))
        rows = len(next(iter(found.values()), ()))
        return _row(found, lambda name: maker.column(name, rows))

    return getitem


def _items(maker: ColumnMaker, only_synthetic: Callable[[], bool], original: Any) -> Any:
    def getitems(self: Any, keys: Any) -> Any:
        """Rows as a data loader takes them: they reach the script without passing through `__getitem__`."""
        rows = original(self, keys)
        if not only_synthetic():
            return rows
        return [_row(row, maker.value) if type(row) is dict else row for row in rows]

    return getitems


def _iterating(maker: ColumnMaker, only_synthetic: Callable[[], bool], original: Any) -> Any:
    def iterate(self: Any) -> Any:
        for number, row in enumerate(original(self)):
            grows = type(row) is dict and only_synthetic()
            yield _row(row, functools.partial(maker.value, row=number)) if grows else row

    return iterate


def _skipping(only_synthetic: Callable[[], bool], original: Any) -> Any:
    @functools.wraps(original)
    def skip(self: Any, n: int) -> Any:
        """All rows: they are alike, and the data set that the stream stands for has more than are skipped."""
        return self if only_synthetic() else original(self, n)

    return skip


def _mapping_stream(maker: ColumnMaker, only_synthetic: Callable[[], bool], original: Any) -> Any:
    """`map` and `filter` of a stream, whose function gets rows, or batches of them, as they come from the table."""

    @functools.wraps(original)
    def call(self: Any, function: Any = None, *args: Any, **kwargs: Any) -> Any:
        def of_row(row: Any, *others: Any) -> Any:
            if type(row) is dict:
                is_batch = bool(kwargs.get("batched"))
                rows = len(next(iter(row.values()), ())) if is_batch else 0
                make = functools.partial(maker.column, rows=rows) if is_batch else maker.value
                row = GrowingRow(row, make)
            return function(row, *others)

        is_own = function is not None and not kwargs.get("input_columns") and only_synthetic()
        return original(self, of_row if is_own else function, *args, **kwargs)

    return call


def _transforming(maker: ColumnMaker, only_synthetic: Callable[[], bool], original: Any) -> Any:
    def init(self: Any, transform: Callable[[Any], Any], *args: Any, **kwargs: Any) -> None:
        def of_batch(batch: Any) -> Any:
            if only_synthetic() and type(batch) is dict:
                rows = len(next(iter(batch.values()), ()))
                batch = GrowingRow(batch, lambda name: maker.column(name, rows))
            return transform(batch)

        original(self, of_batch, *args, **kwargs)

    return init


def _removing_known(only_synthetic: Callable[[], bool], original: Any) -> Any:
    @functools.wraps(original)
    def remove_columns(self: Any, column_names: Any, *args: Any, **kwargs: Any) -> Any:
        if only_synthetic():
            wanted = [column_names] if isinstance(column_names, str) else column_names
            column_names = [name for name in wanted if name in self.column_names]
        return original(self, column_names, *args, **kwargs)

    return remove_columns


class _GrowingFeatures(dict[str, Any]):
    """Types of columns, and of those that the table lacks as they would be made."""

    def __init__(self, features: Mapping[str, Any], maker: ColumnMaker) -> None:
        super().__init__({name: _feature_of(name, feature) for name, feature in features.items()})
        self._maker = maker

    def __missing__(self, name: str) -> Any:
        datasets = sys.modules["datasets"]
        if kind_of(name) == "label":
            self[name] = datasets.ClassLabel(num_classes=1 + max(self._maker.column(name, _MANY_ROWS)))
        else:
            made = datasets.Dataset.from_dict({name: [self._maker.value(name)]})
            self[name] = _feature_of(name, made._info.features[name])
        return self[name]


def _feature_of(name: str, feature: Any) -> Any:
    """The type as a real table has it: recordings are `Audio`, and the classes of boxes have names."""
    datasets = sys.modules["datasets"]
    if kind_of(name) == "audio" and isinstance(feature, dict):
        return datasets.Audio(sampling_rate=SAMPLING_RATE)
    if kind_of(name) == "objects" and isinstance(feature, dict):
        classes = datasets.ClassLabel(names=[str(label) for label in range(BOX_CLASSES)])
        return {part: datasets.Sequence(classes) if kind_of(part) == "label" else of for part, of in feature.items()}
    return feature


def _features(maker: ColumnMaker, only_synthetic: Callable[[], bool], original: Any) -> Any:
    def features(self: Any) -> Any:
        found = original.fget(self)
        is_asked = isinstance(found, dict) and only_synthetic() and script_location.is_called_by_user()
        return _GrowingFeatures(found, maker) if is_asked else found  # the library itself writes rows by them

    return property(features)


def _side_by_side(only_synthetic: Callable[[], bool], original: Any) -> Any:
    @functools.wraps(original)
    def concatenate_datasets(dsets: Any, *args: Any, **kwargs: Any) -> Any:
        """Tables side by side (`axis=1`) without the columns that both got for the script to choose from."""
        if only_synthetic() and (kwargs.get("axis") == 1 or args[2:] == (1,)):
            known: set[str] = set()
            tables = []
            for table in dsets:
                tables.append(table.remove_columns([name for name in table.column_names if name in known]))
                known.update(table.column_names)
            dsets = tables
        return original(dsets, *args, **kwargs)

    return concatenate_datasets


def _selecting(only_synthetic: Callable[[], bool], original: Any) -> Any:
    @functools.wraps(original)
    def select(self: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
        """Rows by number; where the data set that the table stands for has more rows, its own are repeated."""
        count = len(self)
        if (
            only_synthetic()
            and count
            and isinstance(indices, (range, list, tuple))
            and max(indices, default=0) >= count
        ):
            indices = [index % count for index in indices]
        return original(self, indices, *args, **kwargs)

    return select


def _splitting(only_synthetic: Callable[[], bool], original: Any) -> Any:
    @functools.wraps(original)
    def train_test_split(self: Any, test_size: Any = None, train_size: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Two parts, also where one is to have as many rows as the table, or more.

        A small part of a real table has many rows: 0.05 % of a corpus is its validation set. And the whole table is a
        part of a real one: scripts divide the rows of the test set by those of the training set, which are alike here.
        """
        if only_synthetic():
            test_size, train_size = _no_tiny_part(test_size), _no_tiny_part(train_size)
        wanted = sum(size for size in (test_size, train_size) if isinstance(size, int))
        if only_synthetic() and wanted >= len(self):
            self = self.select(range(wanted + len(self)))
        return original(self, test_size, train_size, *args, **kwargs)

    return train_test_split


def _no_tiny_part(size: Any) -> Any:
    return min(max(size, _SMALLEST_PART), 1 - _SMALLEST_PART) if isinstance(size, float) and size > 0 else size


def _after_adding(maker: ColumnMaker, only_synthetic: Callable[[], bool], original: Any) -> Any:
    _, first, *_ = inspect.signature(original).parameters

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        names = args[0] if args else kwargs.get(first, ())  # `DatasetDict` gives it by its name
        if only_synthetic():
            for name in [names] if isinstance(names, str) else names:
                if isinstance(name, str) and name not in self.column_names:
                    self = self.add_column(name, maker.column(name, len(self)))
            other = kwargs.get("new_column_name", args[1] if len(args) > 1 else None)
            if original.__name__ == "rename_column" and other in self.column_names:  # one of ours, which it has not
                self = self.remove_columns([other])
        return original(self, *args, **kwargs)

    return call
