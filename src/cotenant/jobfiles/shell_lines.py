"""The lines and the simple commands of a shell script, without here-documents, redirections and comments. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from cotenant.jobfiles import shell_arrays

MAX_SCRIPT_LINES = 5_000
MAX_JOINED_LINES = 100

_NAME_BEFORE_QUOTE = re.compile(r"\$(\w+)(?=['\"])")
_DESCRIPTOR = re.compile(r"(?<=\s)\d(?=[<>])")  # the 2 of `2>`, but not of `--seed 2 > log`
_PROCESS_SUBSTITUTION = re.compile(r"[<>]\([^()]*\)")
_HEREDOC = re.compile(r"<<-?\s*(['\"\\]?)(\w+)\1?")


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with the number of their first, continuations joined, here-documents left out."""
    waiting: list[str] = []
    parts: list[str] = []
    start = 0
    for number, line in enumerate(text.split("\n")[:MAX_SCRIPT_LINES], start=1):
        if waiting:
            if line.strip() == waiting[0]:
                waiting.pop(0)
            continue
        start = start or number
        if line.endswith("\\") and not line.endswith("\\\\"):
            parts.append(line[:-1])
            continue
        code = line.partition(" #")[0] if shell_arrays.is_open(" ".join(parts)) else line
        whole = " ".join([*parts, code])
        is_open = whole.count('"') % 2 or whole.count("'") % 2  # a string may go on in the next line
        is_open = is_open or shell_arrays.is_open(whole)
        if is_open and not whole.lstrip().startswith("#") and len(parts) < MAX_JOINED_LINES:
            parts.append(code)
            continue
        waiting = [match[2] for match in _HEREDOC.finditer(whole)]
        yield start, whole
        parts, start = [], 0
    if parts:  # the last line ends with a backslash
        yield start, " ".join(parts)


def commands(line: str) -> Iterator[list[str]]:
    """The simple commands of a line, as words with their quotes removed; redirections are left out."""
    for _, words in joined_commands(line):
        yield words


def joined_commands(line: str) -> Iterator[tuple[str, list[str]]]:
    """The same, each with what joins it to the one before it: `;`, `&&`, `||`, or others such as `|` and `(`."""
    line = _NAME_BEFORE_QUOTE.sub(r"${\1}", line)  # a quote ends the name in `$model'_'$length`
    line = _DESCRIPTOR.sub("", _PROCESS_SUBSTITUTION.sub("/dev/fd/63", line))
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    join = ";"
    skips_next = False
    try:
        tokens = _without_comment(list(lexer))
    except ValueError:  # an open quote
        return
    for token in tokens:
        if set(token) <= set("<>&") and set(token) & set("<>"):
            skips_next = True
        elif token and set(token) <= set(";&|()"):
            if words:
                yield join, words
                join = ""
            join += token
            words, skips_next = [], False
        elif skips_next:
            skips_next = False
        else:
            words.append(token)
    if words:
        yield join, words


def _without_comment(tokens: list[str]) -> list[str]:
    for place, token in enumerate(tokens):
        if token.startswith("#"):
            return tokens[:place]
    return tokens
