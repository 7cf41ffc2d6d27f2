"""The content of a file that is made, by its name: words, rows of JSON, tokens; packed where the name says so.

Where the only samples of one dimension are rows of numbers, a text has such rows.
"""

from __future__ import annotations

import gzip
import inspect
import linecache
import re
from pathlib import Path
from types import FrameType

from cotenant.tracing.data.tables import json_rows
from cotenant.tracing.data.text.token_files import TEXT_SUFFIXES, TOKENS, synthetic_text

NUMBER_ROWS = 10_000
_NUMBERS = (".txt", ".csv", ".dat")
_ROWS = (".json", ".jsonl")
_TOKENS = ".bin"
_PACKED = ".gz"
_TOKEN_BYTES = 2
_WIKIPEDIA_BYTES = re.compile(r"enwik([89])$")
"""Files of bytes without a suffix: the first 10^8 or 10^9 of English Wikipedia, by Hutter's prize."""
_COMMA = re.compile(r"""[\"'],[\"']""")  # as a separator
_FETCHED_TEXTS = (".txt", ".tokens", ".raw")
_JSON_READER = re.compile(r"json\.loads\b|\.json\(\)")
_LOADS = re.compile(r"loads\(|map\(json\.loads\b")
_LINE_READER = re.compile(r"for \w+ in|readlines|splitlines|\.split\(")


def is_words(path: str) -> bool:
    """Whether a file of this name is plain text."""
    name = path.removesuffix(_PACKED)
    return name.endswith(TEXT_SUFFIXES) or _WIKIPEDIA_BYTES.search(name) is not None


def is_known(path: str, *, has_text: bool, has_numbers: bool) -> bool:
    """Whether `write` has content for a file of this name, where samples say what a text, or a row of numbers, is."""
    name = path.removesuffix(_PACKED)
    if name.endswith(_ROWS) or (has_text and (is_words(path) or name.endswith(_TOKENS))):
        return True
    return has_numbers and name.endswith(_NUMBERS)


def write(target: Path, path: str, vocabulary: int, columns: int, reader: FrameType) -> None:
    """Write to `target` what `path` holds. `columns`: of numbers; 0: of words.

    `reader`: the frame that opens it, whose code says how it is parsed.
    """
    name = path.removesuffix(_PACKED)
    if name.endswith(_TOKENS):
        with target.open("wb") as file:
            file.truncate(_TOKEN_BYTES * TOKENS)
        return
    if name.endswith(_ROWS):
        content = json_rows.text(by_line=name.endswith("l") or _reads_lines(reader))
    elif columns:
        content = _numbers(columns, "," if name.endswith(".csv") or _COMMA.search(reader_source(reader)) else " ")
    else:
        content = synthetic_text(vocabulary)
    data = content.encode()
    if found := _WIKIPEDIA_BYTES.search(name):
        size = 10 ** int(found[1])
        data = (data * (size // len(data) + 1))[:size]
    target.write_bytes(gzip.compress(data, compresslevel=1) if path.endswith(_PACKED) else data)


def fetched(url: str, vocabulary: int, reader: FrameType) -> bytes | None:
    """What `reader` fetches from an address: a text or rows of JSON, packed where it unpacks them.

    None where neither the name nor the code says which.
    """
    name = url.partition("?")[0]
    plain, source = name.removesuffix(_PACKED), reader_source(reader)
    is_unnamed = "." not in plain.rpartition("/")[2]
    if plain.endswith(_ROWS) or (is_unnamed and _JSON_READER.search(source)):
        content = json_rows.text(by_line=plain.endswith("l") or _reads_lines(reader))
    elif plain.endswith(_FETCHED_TEXTS):
        content = synthetic_text(vocabulary)
    else:
        return None
    is_packed = name.endswith(_PACKED) or "gzip.decompress(" in source
    return gzip.compress(content.encode(), compresslevel=1) if is_packed else content.encode()


def _numbers(columns: int, separator: str) -> str:
    """Rows of numbers that differ, for scripts that divide by a deviation."""
    rows = [separator.join([str(hour)] * columns) for hour in range(24)]
    return "\n".join(rows[index % 24] for index in range(NUMBER_ROWS)) + "\n"


def _reads_lines(reader: FrameType) -> bool:
    """Whether the function that opens a file parses its lines one by one, as far as its source says."""
    source = reader_source(reader)
    return "json.load(" not in source and bool(_LOADS.search(source)) and bool(_LINE_READER.search(source))


def reader_source(reader: FrameType) -> str:
    """The source of a function, or of a file that is run; empty where it is not known."""
    if reader.f_code.co_name == "<module>":
        return "".join(linecache.getlines(reader.f_code.co_filename))
    try:
        return inspect.getsource(reader.f_code)
    except (OSError, TypeError):
        return ""
