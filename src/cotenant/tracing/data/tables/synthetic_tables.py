"""Tables that a script reads with pandas and that are not on this machine.

A synthetic sample of floating-point numbers and one dimension describes a row: `7:float32` has seven columns of
numbers. A column of dates stands before them where the file that reads the table mentions dates or leaves columns out;
the last is named `OT` as in the benchmarks of time series, and a column that the script reads by another name is made
then. Without such a sample, and where it is as long as a recording, a table has as many columns as the script takes by
their number, as in `table.iloc[7, 1]`. Where images are the sample, its columns have their names and labels.
Source of the names: zhouhaoyi/ETDataset, ETT-small.
"""

from __future__ import annotations

import ast
import functools
import importlib
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from urllib.error import URLError

from cotenant.tracing import script_location
from cotenant.tracing.data import placeholders
from cotenant.tracing.data.data_options import CLASSES, MIN_AUDIO_SAMPLES, SyntheticSample
from cotenant.tracing.data.images import image_files
from cotenant.tracing.data.sample_paths import MISSING_FILE
from cotenant.tracing.data.static_analysis.source_tree import parsed_source
from cotenant.tracing.data.tables.column_values import TIME_STEPS, ColumnMaker, kind_of, words_of_row
from cotenant.tracing.data.tables.compared_columns import compared_texts
from cotenant.tracing.data.tables.synthetic_records import RecordMaker, made_up
from cotenant.tracing.data.tables.table_dates import date_column
from cotenant.tracing.patches.registry import Patch, Phase
from cotenant.tracing.sandbox.overlay import Overlay

_TARGET = "OT"
_HAS_DATES = re.compile(rb"date|time|index|iloc|drop\(|columns\[", re.IGNORECASE)
_OTHER_DATES = re.compile(
    rb"^\s*(?:from|import)\b.*$|datetime\.(?:datetime\.)?now\(\)(?:\.\w+)*|\btime\.\w+|(?:up|vali)date|runtime",
    re.IGNORECASE | re.MULTILINE,
)
"""Words of dates, and those that say nothing of a table: imports, clocks, and other words that contain them."""
_OF_ONE_IDENTITY = 16  # rows, of a column that is read as whole numbers: a session, an item
_ROWS = 2000  # of a table of images, as many as images of a folder
_IMAGE_SUFFIX = ".jpg"
_FILE_NAME = re.compile(r"file|path|name$", re.IGNORECASE)
_TEXT_NAME = re.compile(r"text|caption|sentence|title|prompt|description|question|answer|report", re.IGNORECASE)
_EDGE_NAME = re.compile(r"(?:x|y)_?(?:min|max|[12])|left|top|right|bottom", re.IGNORECASE)
_LAST_EDGE = re.compile(r"max|2|right|bottom", re.IGNORECASE)
"""Names of columns with files, texts, edges of a box, and of those edges that are the last."""
_PIXELS = "pixels"  # of FER2013, a table: the numbers of an image, with spaces between
_DATE_NAME = re.compile(r"date|timestamp", re.IGNORECASE)
_SPLIT_NAME = re.compile(r"(?:data_?)?(?:split|set|subset|partition|phase|usage)", re.IGNORECASE)
_SPLIT = re.compile(r"train(?:ing)?|val(?:id(?:ation)?)?|dev|test(?:ing)?", re.IGNORECASE)
"""Names of columns that say which part of a data set a row is of, and of those parts."""
_TRAINING_ROWS = 8  # for each one of another part
_COLUMN_TAKERS = ("sort_values", "groupby", "drop_duplicates", "dropna", "set_index", "drop", "rename", "pop")
"""Methods whose first argument, or one of `_COLUMN_OPTIONS`, names columns."""
_COLUMN_OPTIONS = ("by", "subset", "keys", "columns", "item")
_ROWS_OF = ("iterrows", "itertuples")
_OF_CELLS = ("read_csv", "read_table", "read_excel")
_TAGS = ("O", *(f"{place}-{number}" for number in range(CLASSES // 2) for place in "BI"))
"""Of words: outside of names, and at the begin or inside of one of a class."""

_Dates: TypeAlias = Callable[[], Any]


def patches(samples: Sequence[SyntheticSample], overlay: Overlay, warn: Callable[[str], None]) -> list[Patch]:
    """Readers of pandas. Without a sample that is a row, a table has those columns alone that the script reads."""
    row = next((sample for sample in samples if _is_row(sample)), None)
    columns = 0 if row is None else row.shape[0]
    records = RecordMaker(samples, overlay, warn, lambda path: True, lambda path: True)
    return [
        Patch(
            target=f"pandas:{name}", phase=Phase.DATA, wraps=True, reason="It raises where the file is missing.",
            replacement=functools.partial(_reading, columns, ColumnMaker.of(samples), records, warn),
            source="pandas/io/parsers/readers.py, `read_csv`",
        )
        for name in (
            "read_csv", "read_table", "read_parquet", "read_excel", "read_json", "read_pickle", "read_feather",
            "read_hdf",
        )
    ]  # fmt: skip


def _is_row(sample: SyntheticSample) -> bool:
    """Whether a sample is a row of numbers, and no recording."""
    return sample.is_recording_or_row and sample.shape[0] < MIN_AUDIO_SAMPLES


def _reading(columns: int, maker: ColumnMaker, records: RecordMaker, warn: Callable[[str], None], original: Any) -> Any:
    @functools.wraps(original)
    def read(file: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if not placeholders.is_placeholder(file):
                return original(file, *args, **kwargs)
        except (*MISSING_FILE, URLError):  # a file, or one of the network
            pass
        warn(f"`{file}`")
        made_up.append(str(file))
        reader = script_location.calling_file()
        of_images = functools.partial(_of_images, maker, appends_suffix=_appends_suffix(reader))
        rows = records.positional_rows() if not columns and kwargs.get("names") is None else []
        if rows:
            pandas = importlib.import_module("pandas")
            has_names = kwargs.get("header", "infer") is not None
            table = pandas.DataFrame(rows, columns=[str(at) for at in range(len(rows[0]))] if has_names else None)
            make = of_images if maker.image is not None else functools.partial(maker.column, rows=len(rows))
            return _growing(pandas)(table).with_maker(make)
        if not columns and maker.image is not None:
            return _table(columns, of_images, kwargs, rows=max(_ROWS, maker.image.classes))
        dates = functools.partial(date_column, original.__name__, kwargs, reader, TIME_STEPS)
        make = functools.partial(_column, columns, maker, _split_names(reader), dates)
        if original.__name__ in _OF_CELLS:
            make = functools.partial(_of_tokens, make)
        return _table(columns, make, kwargs, rows=TIME_STEPS, dates=dates if _mentions_dates(reader) else None)

    return read


def _mentions_dates(reader: str) -> bool:
    """Whether the file that reads a table has a word of dates or of columns; a library has."""
    try:
        is_library = not script_location.is_user_file(reader)
        return is_library or bool(_HAS_DATES.search(_OTHER_DATES.sub(b"", _without_docstrings(reader))))
    except OSError:
        return True


def _without_docstrings(path: str) -> bytes:
    """A source file, whose docstrings may mention a "time series" that has no dates."""
    lines = Path(path).read_bytes().splitlines(keepends=True)
    for node in ast.walk(parsed_source(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines[node.lineno - 1 : node.end_lineno] = [b"\n"] * ((node.end_lineno or node.lineno) - node.lineno + 1)
    return b"".join(lines)


def _table(
    columns: int, make: Callable[[str], Any], options: dict[str, Any], *, rows: int, dates: _Dates | None = None
) -> Any:  # fmt: skip
    pandas, numpy = importlib.import_module("pandas"), importlib.import_module("numpy")
    names = options.get("names")
    has_names = names is not None or options.get("header", "infer") is not None
    if names is None:
        names = [*map(str, range(columns - 1)), _TARGET][:columns] if has_names else range(columns)
    hours = numpy.arange(rows, dtype=float)[:, None] % 24
    table = _growing(pandas)(numpy.tile(hours, (1, len(names))), columns=list(names))
    if options.get("names") is None and has_names and columns and dates is not None:
        table.insert(0, "date", dates())
    table = table.with_maker(make)
    for name, dtype in _named_columns(options, list(table.columns)).items():
        if name not in table.columns or dtype is not None:
            kind = numpy.dtype(dtype).kind if dtype is not None else "O"
            identities = numpy.arange(rows) // _OF_ONE_IDENTITY
            numbers = identities if kind in "iu" else hours[:, 0] if kind == "f" else None
            table[name] = numbers.astype(dtype) if numbers is not None else make(name)
    index = options.get("index_col")
    return table if index in (None, False) else table.set_index(table.columns[index] if index in (0, 1) else index)


def _named_columns(options: dict[str, Any], names: list[Any]) -> dict[Any, Any]:
    """Columns that the reader's options name, with their dtypes, if they have one; a number is a position."""
    wanted, dtypes = options.get("usecols"), options.get("dtype")
    found: dict[Any, Any] = (
        {name: None for name in wanted if isinstance(name, str)} if isinstance(wanted, (list, tuple)) else {}
    )
    typed = dtypes if isinstance(dtypes, dict) else {}
    by_position = {name: names[name] for name in typed if isinstance(name, int) and name < len(names)}
    return found | {by_position.get(name, name): dtype for name, dtype in typed.items()}


def _column(columns: int, maker: ColumnMaker, splits: Sequence[str], dates: _Dates, name: str) -> Any:
    """Values of a column that a table lacks: numbers, or dates, where a row of numbers is the only sample for text."""
    if splits and _SPLIT_NAME.fullmatch(name):
        return splits
    if not columns or maker.text is not None or kind_of(name) not in ("text", "row"):
        return maker.column(name, TIME_STEPS)
    if _DATE_NAME.search(name):
        return dates()
    return importlib.import_module("numpy").arange(TIME_STEPS, dtype=float) % 24


@functools.cache
def _split_names(reader: str) -> list[str]:
    """Parts of a data set that the file that reads a table names, those for training more often; none: it names none.

    Its rows are selected by them, as in `table[table.split == "train"]`.
    """
    constants = (node.value for node in ast.walk(parsed_source(reader)) if isinstance(node, ast.Constant))
    names = dict.fromkeys(value for value in constants if isinstance(value, str) and _SPLIT.fullmatch(value))
    if not any(name.lower().startswith("train") for name in names):
        return []
    return [name for name in names for _ in range(_TRAINING_ROWS if name.lower().startswith("train") else 1)]


def _of_tokens(make: Callable[[str], Any], name: str) -> Any:
    """A column of a file that has no lists: where others have the words of a text, or their tags, it has one a row."""
    kind = kind_of(name)
    if kind == "words":
        return [words_of_row(1, row) for row in range(TIME_STEPS)]
    if kind == "tags":
        return [_TAGS[row % len(_TAGS)] for row in range(TIME_STEPS)]
    return make(name)


def _of_images(maker: ColumnMaker, name: str, *, appends_suffix: bool) -> Any:
    """A column of a table of images: texts that the script compares it with, names of images, a text, edges, labels.

    A box is from 0 to 1, which is the whole image where edges are relative to its size. `pixels` is a whole image.
    """
    image = maker.image or SyntheticSample(shape=(3, 1, 1))
    rows, kind = max(_ROWS, image.classes), kind_of(name)
    if texts := compared_texts(script_location.calling_file(), name):
        return [texts[row % len(texts)] for row in range(rows)]
    if name == _PIXELS:
        return [" ".join(["0"] * math.prod(image.shape))] * rows
    if kind in ("image", "row") or _FILE_NAME.search(name):
        is_bare = appends_suffix or kind == "row"
        return [f"{row:06d}{'' if is_bare else _IMAGE_SUFFIX}" for row in range(rows)]
    if _EDGE_NAME.fullmatch(name):
        return [float(_LAST_EDGE.search(name) is not None)] * rows
    if maker.text is None and kind == "text" and not _TEXT_NAME.search(name):
        return [row % image.classes for row in range(rows)]
    return maker.column(name, rows)


@functools.cache
def _appends_suffix(reader: str) -> bool:
    """Whether the file that reads a table adds the suffix of images to names: `name + ".jpg"`, `f"{name}.jpg"`."""
    for node in ast.walk(parsed_source(reader)):
        parts: list[Any] = node.values[1:] if isinstance(node, ast.JoinedStr) else []
        parts = [node.right] if isinstance(node, ast.BinOp) else [node] if _is_template(node) else parts
        texts = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        if any(text.lower().endswith(tuple(image_files.FORMATS)) for text in texts):
            return True
    return False


def _is_template(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(re.search(r"%s|%d|{.*}", node.value))


@functools.cache
def _growing(pandas: Any) -> Any:
    """The class of a table that makes a column that it lacks."""

    class GrowingTable(pandas.DataFrame):
        @property
        def _constructor(self) -> Any:  # of what methods return: `fillna`, `reset_index`, groups, selected rows
            return GrowingTable

        def with_maker(self, make: Callable[[str], Any]) -> Any:
            self.attrs["cotenant_column"] = make
            return self

        def __getitem__(self, key: Any) -> Any:
            _add_columns(self, key)
            return super().__getitem__(key)

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                if name.startswith("_") or not script_location.is_called_by_user():
                    raise
            return self[name]

    if hasattr(pandas.DataFrame, "loc"):

        class GrowingRows(importlib.import_module("pandas.core.indexing")._LocIndexer):  # type: ignore[misc]
            def __getitem__(self, key: Any) -> Any:
                if isinstance(key, tuple):
                    _add_columns(self.obj, key[-1])
                return super().__getitem__(key)

        GrowingTable.loc = property(functools.partial(GrowingRows, "loc"))
    for name in filter(functools.partial(hasattr, pandas.DataFrame), _COLUMN_TAKERS):
        setattr(GrowingTable, name, _with_columns(getattr(pandas.DataFrame, name)))
    for name in filter(functools.partial(hasattr, pandas.DataFrame), _ROWS_OF):
        setattr(GrowingTable, name, _with_columns_of_rows(getattr(pandas.DataFrame, name)))
    return GrowingTable


def _with_columns_of_rows(original: Any) -> Any:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        """As of a table that has the columns which a loop over its rows reads: `row.surname`, `row["surname"]`."""
        _add_columns(self, _columns_of_rows(*script_location.calling_line()))
        return original(self, *args, **kwargs)

    return call


@functools.cache
def _columns_of_rows(path: str, line: int) -> list[str]:
    """Columns that the loop at a line reads of each row; none where no loop is there."""
    loops = (node for node in ast.walk(parsed_source(path)) if isinstance(node, ast.For) and node.lineno == line)
    series = importlib.import_module("pandas").Series  # `row.name` is its label, `row["name"]` a column
    found: dict[str, None] = {}
    for loop in loops:
        targets = [node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)]
        for node in (node for part in loop.body for node in ast.walk(part)):
            if not isinstance(node, (ast.Attribute, ast.Subscript)) or not isinstance(node.value, ast.Name):
                continue
            key = node.attr if isinstance(node, ast.Attribute) else getattr(node.slice, "value", None)
            is_column = isinstance(node, ast.Subscript) or not hasattr(series, str(key))
            if node.value.id == targets[-1] and isinstance(key, str) and is_column:  # of `for index, row`, the last one
                found[key] = None
    return list(found)


def _with_columns(original: Any) -> Any:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        """As of a table that has the columns which the call names."""
        for key in (*args[:1], *(kwargs[name] for name in _COLUMN_OPTIONS if name in kwargs)):
            _add_columns(self, list(key) if isinstance(key, (dict, tuple)) else key)
        return original(self, *args, **kwargs)

    return call


def _add_columns(table: Any, key: Any) -> None:
    make = table.attrs.get("cotenant_column")
    if make is None:
        return
    for name in [key] if isinstance(key, str) else key if isinstance(key, list) else ():
        if isinstance(name, str) and name not in table.columns:
            values = list(make(name))
            table[name] = [values[row % len(values)] for row in range(len(table))]
