"""Times and lists of numbers as Slurm's users write them."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from datetime import time as clock
from typing import Any

from cotenant.core.errors import UsageError
from cotenant.core.units import parse_duration

MAX_ARRAY_TASKS = 10_000

_UNITS_S = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400}
_NAMED = {"midnight": (0, 0), "noon": (12, 0), "fika": (15, 0), "teatime": (16, 0)}
_PAST = "write `2days ago`, `16:00` or `2026-11-21T16:00`"
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18})(?::(\d{1,18}))?)?")
_PIECES = re.compile(
    r"(?:[ \t-]|t(?!oday|omorrow|eatime))*(?:"  # what may join a date and a time
    r"(?P<day>today|tomorrow)|(?P<named>midnight|noon|fika|teatime)"
    r"|(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}))?\s*(?P<half>am|pm)?"
    r"|(?P<y>\d{4})-(?P<m>\d{2})-(?P<d>\d{2})"
    r"|(?P<us_m>\d{1,2})[/.](?P<us_d>\d{1,2})(?:[/.](?P<us_y>\d{2}))?"
    r"|(?P<short_m>\d{2})(?P<short_d>\d{2})(?P<short_y>\d{2})?"
    r")(?:[ \tt-]*$)?",
    re.ASCII,
)
_NOW = re.compile(
    r"now(?:\s*(?P<sign>[+-])\s*(?P<count>\d{1,9})\s*(?P<unit>second|minute|hour|day|week)?s?)?", re.ASCII
)


class _Moment:
    """A date and a time of day, as the pieces of a text set them."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._date: date | None = None
        self._clock: clock | None = None

    def set(self, piece: re.Match[str]) -> None:
        """Take in one piece; a later one replaces an earlier one.

        Raises:
            ValueError: there is no such date or time.
        """
        if piece["day"]:
            self._date = self._now.date() + timedelta(days=piece["day"] == "tomorrow")
        elif piece["named"]:
            self._clock = clock(*_NAMED[piece["named"]])
        elif piece["hour"]:
            hour = int(piece["hour"])
            if piece["half"] and hour > 12:
                raise ValueError(f"{hour} {piece['half']}")
            if piece["half"]:
                hour = hour % 12 + (12 if piece["half"] == "pm" else 0)
            self._clock = clock(hour, int(piece["minute"]), int(piece["second"] or 0))
        elif piece["y"]:
            self._date = _date(int(piece["y"]), int(piece["m"]), int(piece["d"]))
        else:
            kind = "us" if piece["us_m"] else "short"
            self._set_month_and_day(int(piece[f"{kind}_m"]), int(piece[f"{kind}_d"]), piece[f"{kind}_y"])

    def _set_month_and_day(self, month: int, day: int, year: str | None) -> None:
        if year is not None:
            self._date = _date(2000 + int(year), month, day)
        elif self._date is not None:
            self._date = _date(self._date.year, month, day)
        else:
            has_passed = (month, day) < (self._now.month, self._now.day)
            self._date = _date(self._now.year + has_passed, month, day)

    def at_s(self, *, is_past: bool) -> float:
        """Seconds since 1970; without a date the next, or with `is_past` the last, such time."""
        found = self._date
        if found is None and self._clock is not None:
            is_later = self._clock > self._now.time()
            found = self._now.date() + timedelta(days=(0 if is_later else 1) - is_past)
        if found is None:
            raise ValueError("neither a date nor a time")
        # Without a time zone in `now`, `timestamp` applies the machine's, with its summer time at that date.
        return datetime.combine(found, self._clock or clock(), tzinfo=self._now.tzinfo).timestamp()


def _date(year: int, month: int, day: int) -> date:
    """A date; days beyond the end of a month are those of the next one, as for Slurm: 02/30 is the 2nd of March.

    Raises:
        ValueError: there is no such month, or no such day in any month.
    """
    if not 1 <= day <= 31:
        raise ValueError(f"day {day}")
    return date(year, month, 1) + timedelta(days=day - 1)


def parse_begin(text: str, now: datetime) -> float:
    """Seconds since 1970 meant by `now+2hours`, `16:00`, `tomorrow`, `12/25 4:00pm` or `2026-11-21T16:00`.

    A clock time that has passed is tomorrow's, a day that has passed next year's. `now` is in the time zone of the
    text; without one, in the machine's. Source: sbatch(1), `--begin`; a time with a zone is read as well.

    Raises:
        UsageError: none of these.
    """
    try:
        return _seconds(text, now, is_past=False)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"`{text}` is not a time to begin", hint="write `now+2hours`, `16:00` or `2026-11-21T16:00`"
        ) from error


def _seconds(text: str, now: datetime, *, is_past: bool) -> float:
    """`parse_begin`, or with `is_past` the last such time.

    Raises:
        ValueError, OverflowError: it is no time.
    """
    word = text.strip().lower()
    if re.search(r"t\d.*(?:z|[+-]\d{2}:\d{2})$", word):
        # Python 3.10 reads no `Z`.
        return datetime.fromisoformat(re.sub("Z$", "+00:00", text.strip().upper())).timestamp()
    if re.fullmatch(r"uts\d{1,12}", word):
        return float(word.removeprefix("uts"))
    delay = _NOW.fullmatch(word)
    if delay is not None:
        delay_s = int(delay["count"] or 0) * _UNITS_S[delay["unit"] or "second"]
        return now.timestamp() + (-delay_s if delay["sign"] == "-" else delay_s)
    moment = _Moment(now)
    place = 0
    while place < len(word):
        piece = _PIECES.match(word, place)
        if piece is None:
            raise ValueError(word[place:])
        moment.set(piece)
        place = piece.end()
    return moment.at_s(is_past=is_past)


def parse_time_limit(text: str) -> float | None:
    """Seconds in `MM`, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM` or `D-HH:MM:SS`; None, no limit, for `UNLIMITED` and 0.

    Source: sbatch(1), `--time`; Slurm rounds a limit up to minutes, we do not. Its 22.05 takes `-5` for 2**32 - 5
    minutes, which is refused here.

    Raises:
        UsageError: none of these.
    """
    word = text.lower()
    if word in ("unlimited", "infinite", "none", "-1", "-0") or re.fullmatch(r"(0+-)?0+(:0+){0,2}", word):
        return None
    if word != word.strip():
        raise UsageError(f"`{text}` begins or ends with a blank", hint="write e.g. --time=2:00:00")
    return parse_duration(f"{word}0" if re.fullmatch(r"\d+-", word, re.ASCII) else text)


def parse_begin_from_now(text: str) -> float:
    """`parse_begin`, as of now."""
    return parse_begin(text, datetime.now())  # noqa: DTZ005 (the zone of a later date may differ)


def parse_past_until_now(text: str) -> float:
    """`parse_past`, as of now."""
    return parse_past(text, datetime.now())  # noqa: DTZ005 (as above)


def parse_past(text: str, now: datetime) -> float:
    """Seconds since 1970 meant by `2days ago`, `yesterday`, `today`, `16:00` (the last one) or `2026-11-21T16:00`.

    Raises:
        UsageError: none of these.
    """
    word = text.strip().lower()
    ago = re.fullmatch(r"(\d{1,6}) ?([a-z]+) ago", word)
    if ago is not None and ago[2].removesuffix("s") in _UNITS_S:
        return now.timestamp() - int(ago[1]) * _UNITS_S[ago[2].removesuffix("s")]
    try:
        at_s = _seconds("today", now, is_past=True) - _UNITS_S["day"] if word == "yesterday" else None
        at_s = _seconds(text, now, is_past=True) if at_s is None else at_s
    except (ValueError, OverflowError) as error:
        raise UsageError(f"`{text}` is not a time in the past", hint=_PAST) from error
    if re.match(r"now\s*\+", word) or word == "tomorrow":
        raise UsageError(f"`{text}` is not a time in the past", hint=_PAST)
    return at_s


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
        if last < first or step == 0:
            found = "a step of 0" if step == 0 else f"{first} is above {last}"
            raise UsageError(f"array `{text}`: `{part}` has no tasks: {found}")
        if (last - first) // step >= MAX_ARRAY_TASKS:
            raise UsageError(f"array `{text}`: `{part}` has more than {MAX_ARRAY_TASKS:,} tasks")
        tasks += range(first, last + 1, step)
    if len(set(tasks)) != len(tasks):
        raise UsageError(f"array `{text}` names a task twice")
    if len(tasks) > MAX_ARRAY_TASKS:
        raise UsageError(f"array `{text}` has {len(tasks)} tasks, wanted at most {MAX_ARRAY_TASKS}")
    return {"tasks": tasks, "limit": int(limit) if percent else None}
