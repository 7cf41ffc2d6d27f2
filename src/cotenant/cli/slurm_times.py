"""Times and lists of numbers as Slurm's users write them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

from cotenant.core.errors import UsageError

MAX_ARRAY_TASKS = 10_000

_UNITS_S = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400}
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_NAMED = {"midnight": (0, 0), "noon": (12, 0), "teatime": (16, 0)}
_PAST = "write `2days ago`, `16:00` or `2026-11-21T16:00`"
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18})(?::(\d{1,18}))?)?")


def parse_begin(text: str, now: datetime) -> float:
    """Seconds since 1970 meant by `now+2hours`, `16:00`, `tomorrow` or `2026-11-21T16:00`; `now` has a time zone.

    A clock time that has passed is tomorrow's. Source: sbatch(1), `--begin`.

    Raises:
        UsageError: none of these.
    """
    word = text.strip().lower()
    if word.startswith("now"):
        return now.timestamp() + _delay_s(word.removeprefix("now"), text)
    if word in ("today", "tomorrow"):
        days = 0 if word == "today" else 1
        return (now + timedelta(days=days)).replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
    clock = _CLOCK.fullmatch(word)
    if word in _NAMED or clock is not None:
        hour, minute = _NAMED[word] if clock is None else (int(clock[1]), int(clock[2]))
        second = 0 if clock is None else int(clock[3] or 0)
        if hour > 23 or minute > 59 or second > 59:
            raise _invalid_begin(text)
        at = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
        return (at if at > now else at + timedelta(days=1)).timestamp()
    try:
        at = datetime.fromisoformat(text.strip().upper())
    except ValueError as error:
        raise _invalid_begin(text) from error
    return (at if at.tzinfo is not None else at.replace(tzinfo=now.tzinfo)).timestamp()


def parse_begin_from_now(text: str) -> float:
    """`parse_begin`, as of now."""
    return parse_begin(text, datetime.now().astimezone())


def parse_past_until_now(text: str) -> float:
    """`parse_past`, as of now."""
    return parse_past(text, datetime.now().astimezone())


def parse_past(text: str, now: datetime) -> float:
    """Seconds since 1970 meant by `2days ago`, `yesterday`, `today`, `16:00` (the last one) or `2026-11-21T16:00`.

    Raises:
        UsageError: none of these.
    """
    word = text.strip().lower()
    ago = re.fullmatch(r"(\d{1,6}) ?([a-z]+) ago", word)
    if ago is not None and ago[2].removesuffix("s") in _UNITS_S:
        return now.timestamp() - int(ago[1]) * _UNITS_S[ago[2].removesuffix("s")]
    if word == "yesterday":
        return parse_begin("today", now - timedelta(days=1))
    if word.startswith("now+") or word == "tomorrow":
        raise UsageError(f"`{text}` is not a time in the past", hint=_PAST)
    try:
        at_s = parse_begin(text, now)
    except UsageError as error:
        raise UsageError(f"`{text}` is not a time in the past", hint=_PAST) from error
    return at_s - _UNITS_S["day"] if _CLOCK.fullmatch(word) or word in _NAMED else at_s


def _delay_s(text: str, whole: str) -> float:
    match = re.fullmatch(r"(?:\+(\d{1,9})([a-z]*))?", text)
    if match is None:
        raise _invalid_begin(whole)
    unit = (match[2] or "second").removesuffix("s")
    if unit not in _UNITS_S:
        raise _invalid_begin(whole)
    return int(match[1] or 0) * _UNITS_S[unit]


def _invalid_begin(text: str) -> UsageError:
    return UsageError(f"`{text}` is not a time to begin", hint="write `now+2hours`, `16:00` or `2026-11-21T16:00`")


def parse_array(text: str) -> dict[str, Any]:
    """`tasks`, the indices, and `limit`, how many run at once or None, in `1-10%2`, `0-15:4` or `1,3,5-7`.

    Source: sbatch(1), `--array`.

    Raises:
        UsageError: malformed, an index twice, or more than `MAX_ARRAY_TASKS`.
    """
    listed, percent, limit = text.partition("%")
    if percent and not (limit.isascii() and limit.isdigit() and int(limit) > 0):
        raise UsageError(f"array `{text}` has no number of tasks after `%`", hint="write e.g. 1-10%2")
    tasks: list[int] = []
    for part in listed.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None or not part.isascii():
            raise UsageError(f"array `{text}` is malformed", hint="write e.g. 1-10%2, 0-15:4 or 1,3,5-7")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or step == 0 or (last - first) // step >= MAX_ARRAY_TASKS:
            raise UsageError(f"array `{text}`: `{part}` is no range of at most {MAX_ARRAY_TASKS} tasks")
        tasks += range(first, last + 1, step)
    if len(set(tasks)) != len(tasks):
        raise UsageError(f"array `{text}` names a task twice")
    if len(tasks) > MAX_ARRAY_TASKS:
        raise UsageError(f"array `{text}` has {len(tasks)} tasks, wanted at most {MAX_ARRAY_TASKS}")
    return {"tasks": tasks, "limit": int(limit) if percent else None}
