"""The lines and the simple commands of a shell script, without here-documents, redirections and comments. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from cotenant.jobfiles import shell_arrays

MAX_SCRIPT_LINES = 5_000
MAX_JOINED_LINES = 100

QUOTED = "cotenant_quoted"
"""A variable that is empty: stands behind one in quotes, which is one word whatever its value."""
_QUOTED_VARIABLE = re.compile(r'(?<!\S)"\$\{?(\w+)\}?"(?!\S)')
_NAME_BEFORE_QUOTE = re.compile(r"\$(\w+)(?=['\"])")
_DESCRIPTOR = re.compile(r"(?<=\s)\d(?=[<>])")  # the 2 of `2>`, but not of `--seed 2 > log`
_PROCESS_SUBSTITUTION = re.compile(r"[<>]\([^()]*\)")
_QUOTED_OR_COMMENT = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*"|(?P<open>['"])|(?<![^\s;&|()])#.*""", re.DOTALL)
_BACKGROUND = re.compile(r"(?<![&<>|])&(?![&>])")
_LOOP = re.compile(r"(?:^|[;&|({]|\bdo\b|\bthen\b)\s*(?:for|while|until)\s")
_HEREDOC = re.compile(r"<<-?\s*(['\"\\]?)(\w+)\1?")


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with the number of their first, continuations joined, here-documents and comments left out."""
    waiting: list[str] = []
    parts: list[str] = []
    open_string = ""  # begins in a line before
    joined = start = 0
    for number, line in enumerate(text.split("\n")[:MAX_SCRIPT_LINES], start=1):
        if waiting:
            if line.strip() == waiting[0]:
                waiting.pop(0)
            continue
        start = start or number
        part = f"{open_string} {line}" if open_string else line
        code, is_open = _code(part)
        goes_on = line.endswith("\\") and not line.endswith("\\\\")
        if is_open and joined < MAX_JOINED_LINES:
            open_string, joined = part[:-1] if goes_on else part, joined + 1
            continue
        open_string = ""
        if code == part and goes_on:
            parts.append(part[:-1])
            continue
        whole = " ".join([*parts, code])
        if shell_arrays.is_open(whole) and joined < MAX_JOINED_LINES:
            parts, joined = [whole], joined + 1
            continue
        waiting = [match[2] for match in _HEREDOC.finditer(whole)]
        yield start, whole
        parts, joined, start = [], 0, 0
    if parts or open_string:  # the last line ends with a backslash, or in a string
        yield start, " ".join([*parts, open_string])


def _code(line: str) -> tuple[str, bool]:
    """A line without its comment, and whether a string in it goes on in the next line."""
    for match in _QUOTED_OR_COMMENT.finditer(line):
        if match[0][0] == "#":
            return line[: match.start()], False
        if match["open"]:
            return line, True
    return line, False


def may_run_several_at_once(text: str, commands_found: int) -> bool:
    """Whether a script may run Python commands at the same time: it starts one with `&`, and has several or a loop.

    One alone in the background, before `wait`, is how a script receives signals while it runs.
    """
    lines = [_QUOTED_OR_COMMENT.sub("''", line) for _, line in logical_lines(text)]
    in_background = any(_BACKGROUND.search(line) for line in lines)
    return in_background and (commands_found > 1 or any(_LOOP.search(line) for line in lines))


def commands(line: str) -> Iterator[list[str]]:
    """The simple commands of a line, as words with their quotes removed; redirections are left out."""
    for _, words in listed_commands(line):
        yield words


def listed_commands(line: str) -> Iterator[tuple[str, list[str]]]:
    """The simple commands with what stands before each: `&&`, `||`, `|`, `;`, ...; at the beginning an empty text."""
    line = _NAME_BEFORE_QUOTE.sub(r"${\1}", _code(line)[0])  # a quote ends the name in `$model'_'$length`
    line = _QUOTED_VARIABLE.sub(rf'"${{\1}}${{{QUOTED}}}"', line)
    line = _DESCRIPTOR.sub("", _PROCESS_SUBSTITUTION.sub("/dev/fd/63", line))
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    before = ""
    skips_next = False
    try:
        tokens = list(lexer)
    except ValueError:  # an open quote
        return
    for token in tokens:
        if "[[" in words and "]]" not in words:  # in these brackets, `<`, `>`, `&&` and `||` are part of the test
            words.append(token)
        elif set(token) <= set("<>&") and set(token) & set("<>"):
            skips_next = True
        elif token and set(token) <= set(";&|()"):
            if words:
                yield before, words
            before = token if words or not before else before
            words, skips_next = [], False
        elif skips_next:
            skips_next = False
        else:
            words.append(token)
    if words:
        yield before, words
