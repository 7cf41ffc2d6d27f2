"""Rows of JSON that a script reads from a file that is not on this machine.

Such a file is made with rows that are empty; `json.loads` gives each the keys that the script reads, with values by
their names, as `synthetic_columns` does for tables. Images and recordings are names of files there. What a script only
looks for (`row.get("system")`, `"weight" in row`) is absent, but for what most rows of its kind have. A row that is
passed as keywords, `Example(**row)`, has those that the call needs.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import re
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from cotenant.tracing import script_location
from cotenant.tracing.data.static_analysis.source_tree import parsed_source, spans
from cotenant.tracing.data.tables.column_values import ColumnMaker, kind_of
from cotenant.tracing.data.tables.synthetic_columns import GrowingRow
from cotenant.tracing.patches.registry import Patch, Phase

if TYPE_CHECKING:
    from _collections_abc import dict_keys

ROWS = 1000
MARK = "cotenant_row"
"""The key of a row in the file that grows; the only one where the code says none."""
_IMAGE_MARK = "<image>"
"""Stands for the image in a text. Source: haotian-liu/LLaVA, docs/Finetune_Custom_Data.md; LLaMA-Factory, ms-swift."""
_COMMON_TEXTS = frozenset(
    (
        "text", "sentence", "content", "title", "document", "context", "question", "query", "answer", "instruction",
        "output", "prompt", "response", "completion", "summary", "source", "target", "caption",
    )
)  # fmt: skip
"""Keys that a row has where a script asks for them without reading them."""


def text(*, by_line: bool) -> str:
    """The content of a file: a row on each line, or a list of them."""
    rows = [json.dumps({MARK: index}) for index in range(ROWS)]
    return "\n".join(rows) + "\n" if by_line else "[" + ", ".join(rows) + "]"


def patches(maker: ColumnMaker) -> list[Patch]:
    """The function that parses; `json.load` calls it."""
    return [
        Patch(
            target="json:loads", phase=Phase.DATA, wraps=True, replacement=functools.partial(_parsing, maker),
            reason="A made file cannot know beforehand which keys a script reads.",
            source="Lib/json/__init__.py, `loads`",
        )
    ]  # fmt: skip


class _JsonRow(GrowingRow):
    """A row that also has the common keys while it has not been asked for them."""

    def __init__(self, values: Any = (), maker: ColumnMaker | None = None, number: int = 0) -> None:
        self._maker: ColumnMaker | None = maker or getattr(values, "_maker", None)
        self._number: int = getattr(values, "_number", number)
        make = None if self._maker is None else functools.partial(_value, self._maker, self._number)
        super().__init__(values, make)

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name) or self._maker is None or not isinstance(name, str):
            return super().__contains__(name)
        kind = kind_of(name)
        if kind in ("image", "audio"):
            return (self._maker.image if kind == "image" else self._maker.audio) is not None
        return kind == "chat" or name in _COMMON_TEXTS

    def get(self, name: Any, default: Any = None) -> Any:
        if name not in self:
            return default
        return self[name]  # which makes it

    def __iter__(self) -> Iterator[str]:  # without it, `**row` copies the dict and asks for no keys
        return super().__iter__()

    def keys(self) -> dict_keys[str, Any]:
        """Also those that a call needs to which the row is passed as keywords."""
        for name in _wanted_keywords(script_location.calling_frame()) if self._maker is not None else ():
            self[name]  # makes it
        return super().keys()


def _wanted_keywords(frame: FrameType) -> list[str]:
    """Parameters without defaults of what a frame now calls with keywords from a dict, but for those it names."""
    for call in _calls_with_keywords(frame.f_code.co_filename, frame.f_lineno):
        function = script_location.visible_names(frame).get(getattr(call.func, "id", ""))
        if not callable(function) or function is dict:
            continue
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            continue
        named = {keyword.arg for keyword in call.keywords}
        return [
            parameter.name
            for parameter in parameters[len(call.args) :]
            if parameter.default is parameter.empty
            and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            and parameter.name not in named
        ]
    return []


@functools.cache
def _calls_with_keywords(path: str, line: int) -> tuple[ast.Call, ...]:
    """Calls at a line of a function by its name, with `**`."""
    return tuple(
        node
        for node in ast.walk(parsed_source(path))
        if isinstance(node, ast.Call)
        and spans(node, line)
        and isinstance(node.func, ast.Name)
        and any(keyword.arg is None for keyword in node.keywords)
    )


def _value(maker: ColumnMaker, row: int, name: str) -> Any:
    kind = kind_of(name)
    if _is_read_with_keys(name):
        return _JsonRow({}, maker, row)
    if kind in ("image", "audio"):
        return f"0.{'jpg' if kind == 'image' else 'wav'}"
    if kind != "chat":
        value = maker.value(name, row)
        return str(value) if isinstance(value, (int, float)) and _is_read_as_text(name) else value
    begin = f"{_IMAGE_MARK}\n" if maker.image is not None else ""
    words = maker.words(2, row)
    return [_message("user", "human", begin + words), _message("assistant", "gpt", words)]


def _is_read_as_text(name: str) -> bool:
    """Whether the line that reads a value calls a method of texts: a label may be a word."""
    methods = "strip|lower|upper|title|split|replace|startswith|endswith|encode"
    return bool(re.search(rf"[\"']{re.escape(name)}[\"']\]\.(?:{methods})\(", script_location.calling_text()))


def _is_read_with_keys(name: str) -> bool:
    """Whether the line that reads a value reads a key of it at once: `row["meta"]["source"]`."""
    return bool(re.search(rf"[\"']{re.escape(name)}[\"']\]\[[\"']", script_location.calling_text()))


def _message(role: str, sender: str, content: str) -> dict[str, str]:
    """In both spellings: of OpenAI's and of ShareGPT's format."""
    return {"role": role, "content": content, "from": sender, "value": content}


def _parsing(maker: ColumnMaker, original: Any) -> Any:
    @functools.wraps(original)
    def loads(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        if type(found) is list and found and _is_mark(found[0]):
            return [_row(row, maker) for row in found]
        return _row(found, maker) if _is_mark(found) else found

    return loads


def _row(found: dict[str, Any], maker: ColumnMaker) -> _JsonRow:
    number = found.pop(MARK)
    return _JsonRow(found, maker, number)


def _is_mark(found: Any) -> bool:
    return isinstance(found, dict) and isinstance(found.get(MARK), int)
