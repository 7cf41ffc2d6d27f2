"""Lists, tables and annotations that a script opens and reads by itself: lines of parts, CSV, JSON.

Their form is what the script's own code expects (`expected_format`); where it says too little, nothing is made. A whole
number is a class, or, of two and more in a line without a text, an identity: all values up to the number of classes of
the sample occur. A name of a file is one that its reader makes. A text has as many words as the sample has tokens.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cotenant.tracing import script_location
from cotenant.tracing.data import placeholders
from cotenant.tracing.data.data_options import CLASSES, SyntheticSample, image_size
from cotenant.tracing.data.images import image_files
from cotenant.tracing.data.static_analysis import expected_format, listed_suffixes
from cotenant.tracing.data.static_analysis.format_nodes import Format, FormatNode
from cotenant.tracing.data.tables import json_rows
from cotenant.tracing.data.tables.column_values import ColumnMaker, kind_of
from cotenant.tracing.data.text.token_files import TEXT_SUFFIXES, synthetic_words
from cotenant.tracing.sandbox.overlay import Overlay

_ROWS = 2000  # as many as images of a folder
_CALLERS = 4  # functions through which what one of them reads is returned
_MAX_ROWS = 400_000
_ELEMENTS = 3  # of a list in a row
_OF_ONE_IDENTITY = 16  # rows
_MAX_NUMBERS = 1_000_000  # of a file whose lines have any number of them
_CLASS_LIST = re.compile(r"class|label|categor|names|vocab|synset|lexicon|charset|alphabet", re.IGNORECASE)
_SAMPLE_LIST = re.compile(r"train|val|test|dev|list|split|file|meta|annot|index|ids", re.IGNORECASE)
"""Names of files with a line for each class, and of those with one for each sample."""
_NUMBERED = re.compile(r"\d{5,}")
"""Names of annotations of one image, such as `000017.txt`: a few objects."""
_MAPPING = re.compile(r"(?:2|_to_)(?:id|idx|index)|vocab|label_?map|class_?map", re.IGNORECASE)
_JSON_LINES = ".jsonl"
_LISTS = (".txt", ".lst", ".list")
_FLOAT = 0.5
_BOXES = re.compile(r"(?:.*_)?b?box(?:es)?", re.IGNORECASE)


made_up: list[str] = []
"""Paths of the files that were made in this process, for hints about what the script raises later."""
common_arrays: list[str] = []
"""Names of arrays in made files that got the sample of all, since none describes them, for the same hints."""


class RecordMaker:
    """Makes a file of records.

    `is_data`: whether a path looks like data; `may_be_data`: whether nothing in it says that it is something else.
    """

    def __init__(
        self,
        samples: Sequence[SyntheticSample],
        overlay: Overlay,
        warn: Callable[[str], None],
        is_data: Callable[[str], bool],
        may_be_data: Callable[[str], bool],
    ) -> None:
        self._kinds = ColumnMaker.of(samples)
        self._classes = (self._kinds.image or self._kinds.text or samples[0]).classes
        self._overlay, self._warn = overlay, warn
        self._is_data, self._may_be_data = is_data, may_be_data
        self._image_suffix = ".jpg"
        _, height, width = image_size(self._kinds.image) if self._kinds.image is not None else (3, 2, 2)
        self._box = (0, 0, width - 1, height - 1)

    def make(self, path: str) -> bool:
        """Make what the line that opens `path` now expects, or nothing."""
        full = self._overlay.path_of(path)
        if full is None or not self._may_be_data(path) or self._overlay.exists(full) or _is_image(path):
            return False
        # Rows with texts grow by what the running script asks for (`json_rows`), which says more than its code.
        callers = script_location.user_callers(_CALLERS) if self._kinds.text is None else ()
        form = expected_format.format_at(*script_location.calling_line(), callers)
        self._image_suffix = listed_suffixes.suffix_of_readers(script_location.calling_file(), ".jpg")
        if form is None or not (self._is_data(path) or _lists_files(form)):
            return False
        content = self.content(form, path)
        if content is None:
            return False
        self._overlay.new_file(full).write_text(content)
        self._warn(f"`{path}`")
        made_up.append(path)
        return True

    def positional_rows(self) -> list[list[Any]]:
        """Rows for a table that is being read, with as many columns as the code that reads it takes by their number."""
        form = expected_format.format_at(*script_location.calling_line(), script_location.user_callers(_CALLERS))
        if form is None or form.kind != "table" or not form.node.count:
            return []
        node, rows = form.node, self._count(form.node)
        parts = [node.fields.get(at, node.fields.get(at - node.count, FormatNode())) for at in range(node.count)]
        return [[self._cell(part, row, at) for at, part in enumerate(parts)] for row in range(min(rows, _MAX_ROWS))]

    def _cell(self, node: FormatNode, row: int, column: int) -> Any:
        """A value in a table: a number where nothing says that it is a text, and a name in the first column."""
        if node.uses or node.choices or node.separator != "" or (column == 0 and self._kinds.image is not None):
            node.uses |= {"path"} if column == 0 and not (node.uses or node.choices) else set()
            return self._value(node, row, "")
        return self._words(row) if self._kinds.text is not None and column == 0 else self._whole(row)

    def content(self, form: Format, path: str) -> str | None:
        """The text of a file; None if it cannot be made soundly."""
        node, stem = form.node, Path(path).stem
        if self._kinds.image is not None and self._kinds.text is None and not _CLASS_LIST.search(stem):
            _name_files(node)
        is_of_files = any("path" in leaf.uses for leaf in _leaves(node)) or bool(_SAMPLE_LIST.search(stem))
        is_of_classes = not is_of_files and bool(_CLASS_LIST.search(stem))
        rows = self._classes if is_of_classes else self._count(node)
        rows = _ELEMENTS if _NUMBERED.fullmatch(stem) else rows
        has_words = any(part.is_words() for part in _leaves(node))
        if rows > _MAX_ROWS or (has_words and self._kinds.text is None):
            return None
        if node.rest is not None and self._kinds.image is not None:  # how many labels an image has is not said
            return None
        if form.kind == "json":
            return self._json(node, rows, path)
        if path.endswith(_JSON_LINES) and not any("json" in leaf.uses for leaf in (node, *_leaves(node))):
            return None  # parsed in a way that the code does not show, as by `map(json.loads, file)`
        names = [name for name in node.fields if isinstance(name, str)]
        if names and "json" not in node.uses:
            return self._table(node.fields, names, rows)
        if "escapes" in node.uses:
            return self._escaping_lines(path, rows)
        if not (node.uses or node.choices or node.count):  # nothing is done with a line
            if path.endswith(TEXT_SUFFIXES) if self._kinds.text is not None else not (is_of_files or is_of_classes):
                return None
            node.uses |= {"path"} if is_of_files and self._kinds.text is None else set()
        header = ["header"] * form.header
        return "\n".join([*header, *(self._line(node, row) for row in range(rows))]) + "\n"

    def _escaping_lines(self, path: str, rows: int) -> str | None:
        """Lines that go where their use is not followed: in a list of samples, names of images.

        They are in a folder that is named after the list, as several lists are of several kinds of files.
        """
        stem, suffix = Path(path).stem, Path(path).suffix
        is_list = suffix in _LISTS and _SAMPLE_LIST.search(stem) and not _CLASS_LIST.search(stem)
        if not is_list or self._kinds.image is None or self._kinds.text is not None:
            return None
        return "".join(f"{stem}/{row:06d}{self._image_suffix}\n" for row in range(rows))

    def _table(self, fields: Mapping[Any, FormatNode], names: Sequence[str], rows: int) -> str:
        """CSV with names of columns."""
        file = io.StringIO()
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows([self._value(fields[name], row, name) for name in names] for row in range(rows))
        return file.getvalue()

    def _count(self, node: FormatNode) -> int:
        """Rows, so that every class, word or identity occurs."""
        leaves = list(_leaves(node))
        if self._kinds.text is not None and any(map(self._is_text, leaves)):
            return max(_ROWS, self._kinds.text.classes // self._kinds.text.shape[0] + 1)
        if node.rest is not None:
            return max(_ROWS, self._classes)
        whole = sum("int" in leaf.uses for leaf in leaves)
        return max(_ROWS, self._classes * (_OF_ONE_IDENTITY if whole > 1 else 1))

    def _is_text(self, node: FormatNode) -> bool:
        is_plain = node.separator == "" or node.is_words()
        return self._kinds.text is not None and not node.uses and not node.choices and is_plain

    def _line(self, node: FormatNode, row: int) -> str:
        if "json" in node.uses:
            return json.dumps(self._growing(node, row))
        return str(self._value(node, row, ""))

    def _value(self, node: FormatNode, row: int, name: str, *, is_first: bool = False, has_text: bool = False) -> Any:
        """A text, or a number, for a node that is split or used as it is."""
        if node.choices:
            return node.choices[row % len(node.choices)]
        if node.separator != "" and not node.is_words():
            return self._split(node, row, name)
        if "int" in node.uses:
            return self._whole(row, is_first=is_first, has_text=has_text)
        if "float" in node.uses:
            return _FLOAT
        if "size" in node.uses:
            return self._kinds.audio.shape[0] if self._kinds.audio is not None else self._whole(row)
        is_image = kind_of(name) == "image" and self._kinds.image is not None
        if "path" in node.uses or is_image:
            return f"{row:06d}" + ("" if "suffix" in node.uses else self._suffix())
        if name and kind_of(name) in ("label", "row"):
            return self._whole(row)
        return self._words(row) if self._kinds.text is not None else str(row % self._classes)

    def _split(self, node: FormatNode, row: int, name: str) -> str:
        parts = [node.fields.get(at, node.fields.get(at - node.count, FormatNode())) for at in range(node.count)]
        if node.separator in ("/", "."):
            return node.separator.join(self._of_path(node, parts, row))
        if node.rest is not None:
            return self._open_line(node, row)
        whole = [at for at, part in enumerate(parts) if "int" in part.uses]
        has_text = any(map(self._is_text, parts))
        values = [
            self._value(part, row, name, is_first=len(whole) > 1 and at == whole[0], has_text=has_text)
            for at, part in enumerate(parts)
        ]
        return (" " if node.separator is None else node.separator).join(map(str, values))

    def _open_line(self, node: FormatNode, row: int) -> str:
        """An identity of its own, and numbers up to the end, as many as a sample of whole numbers has: `7 21 22 23`."""
        most = self._kinds.text.shape[0] if self._kinds.text is not None else _ELEMENTS
        size = max(1, min(most, _MAX_NUMBERS // self._count(node)))
        first = [self._value(node.fields.get(at, FormatNode(uses={"int"})), row, "") for at in range(node.count)]
        rest = [self._whole(row * size + at) for at in range(size)]
        return (" " if node.separator is None else node.separator).join(map(str, [*first, *rest]))

    def _of_path(self, node: FormatNode, parts: Sequence[FormatNode], row: int) -> Iterator[str]:
        """Folders of the classes and a file in them, or a file and its suffix."""
        for at, part in enumerate(parts):
            is_last = at == len(parts) - 1
            if node.separator == ".":
                yield self._suffix()[1:] if is_last and at else f"{row:06d}"
            else:
                yield (
                    str(self._value(part, row, "") if part.uses else row % self._classes)
                    if not is_last
                    else (f"{row:06d}{self._suffix()}")
                )

    def _whole(self, row: int, *, is_first: bool = False, has_text: bool = False) -> int:
        classes = CLASSES if has_text and self._kinds.image is None else self._classes
        return (row // _OF_ONE_IDENTITY if is_first else row) % classes

    def _suffix(self) -> str:
        if self._kinds.image is not None:
            return self._image_suffix
        return ".wav" if self._kinds.audio is not None else ""

    def _words(self, row: int) -> str:
        text = self._kinds.text
        return " ".join(synthetic_words(text.classes, row * text.shape[0], text.shape[0])) if text is not None else ""

    def _json(self, node: FormatNode, rows: int, path: str) -> str | None:
        if not (node.fields or node.elements):
            return (
                json.dumps({str(at): at for at in range(self._classes)}) if _MAPPING.search(Path(path).name) else None
            )
        if node.elements is not None and "mapping" in node.uses:
            return json.dumps({str(row): self._object(node.elements, row, "") for row in range(rows)})
        if node.elements is not None:
            return json.dumps([self._growing(node.elements, row) for row in range(rows)])
        made = {name: self._members(part, str(name), rows) for name, part in node.fields.items()}
        return json.dumps(made if all(isinstance(name, str) for name in made) else list(made.values()))

    def _members(self, node: FormatNode, name: str, rows: int) -> Any:
        """A member of the whole: a list of rows, or a value."""
        if node.elements is None:
            return self._object(node, 0, name)
        made = [self._object(node.elements, row, name) for row in range(rows)]
        return dict(enumerate(made)) if "mapping" in node.uses else made

    def _growing(self, node: FormatNode, row: int) -> Any:
        """A row of JSON; of a text other lines of the script may read more than those that were found."""
        made = self._object(node, row, "")
        return {json_rows.MARK: row, **made} if isinstance(made, dict) and self._kinds.text is not None else made

    def _object(self, node: FormatNode, row: int, name: str) -> Any:
        """A value of JSON."""
        if node.separator != "" or not (node.fields or node.elements):
            return self._value(node, row, name)
        if node.elements is not None and "float" in node.elements.uses and _BOXES.fullmatch(name):
            return [list(self._box) for _ in range(_ELEMENTS)]
        if any(isinstance(key, str) for key in node.fields):
            return {str(key): self._object(part, row, str(key)) for key, part in node.fields.items()}
        if node.fields:
            return [
                self._object(node.fields.get(at, node.elements or FormatNode()), row, name) for at in range(node.count)
            ]
        return [self._object(node.elements or FormatNode(), row + at, name) for at in range(_ELEMENTS)]


def _lists_files(form: Format) -> bool:
    """Whether lines of several parts name files, or a list in JSON: it is of samples, whatever its own name is."""
    has_parts = form.kind in ("lines", "csv") and form.node.count > 1
    lists = [node.elements for node in (form.node, *form.node.fields.values()) if form.kind == "json"]
    listed = [form.node] if has_parts else [node for node in lists if node is not None]
    return any("path" in leaf.uses for node in listed for leaf in _leaves(node))


def _name_files(node: FormatNode) -> None:
    """A first part without a known use, before a number, is the name of a file: `7.jpg 3`."""
    first, second = node.fields.get(0), node.fields.get(1)
    if first is None or second is None or "int" not in second.uses:
        return
    if not (first.uses or first.choices or first.fields or first.elements or first.separator != ""):
        first.uses.add("path")


def _is_image(path: str) -> bool:
    return placeholders.suffix_of(path) in image_files.LISTED | placeholders.SUFFIXES


def _leaves(node: FormatNode) -> Iterator[FormatNode]:
    inner = [*node.fields.values(), *([node.elements] if node.elements is not None else [])]
    if not inner or node.is_words():
        yield node
        return
    for part in inner:
        yield from _leaves(part)
