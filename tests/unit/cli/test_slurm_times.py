from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from cotenant.cli.slurm_verbs.times import parse_array, parse_begin, parse_past
from cotenant.core.errors import UsageError

NOW = datetime(2026, 11, 21, 15, 30, 10, tzinfo=timezone(timedelta(hours=2)))


def at(*parts):
    return datetime(*parts, tzinfo=NOW.tzinfo).timestamp()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("now", NOW.timestamp()),
        ("now+90", NOW.timestamp() + 90),
        ("now+1hour", NOW.timestamp() + 3600),
        ("now+2weeks", NOW.timestamp() + 14 * 86400),
        ("16:00", at(2026, 11, 21, 16)),
        ("15:30", at(2026, 11, 22, 15, 30)),
        ("15:30:11", at(2026, 11, 21, 15, 30, 11)),
        ("noon", at(2026, 11, 22, 12)),
        ("midnight", at(2026, 11, 22)),
        ("tomorrow", at(2026, 11, 22)),
        ("2026-12-01", at(2026, 12, 1)),
        ("2027-02-30", at(2027, 3, 2)),
        ("0431", at(2027, 5, 1)),
        ("2026-12-01T08:15", at(2026, 12, 1, 8, 15)),
        ("2026-12-01T08:15:30+00:00", datetime(2026, 12, 1, 8, 15, 30, tzinfo=timezone.utc).timestamp()),
    ],
)
def test_begin_times_are_parsed(text, wanted):
    assert parse_begin(text, NOW) == wanted


@pytest.mark.parametrize(
    "text", ["", "soon", "now+", "now+5parsecs", "24:00", "12:60", "2026-13-01", "16", "2026-12-32", "12/00"]
)
def test_invalid_begin_times_are_refused(text):
    with pytest.raises(UsageError, match="is not a time to begin"):
        parse_begin(text, NOW)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2days ago", NOW.timestamp() - 2 * 86400),
        ("1 hour ago", NOW.timestamp() - 3600),
        ("16:00", at(2026, 11, 20, 16)),
        ("15:30", at(2026, 11, 21, 15, 30)),
        ("today", at(2026, 11, 21)),
        ("yesterday", at(2026, 11, 20)),
        ("2026-11-01T08:15", at(2026, 11, 1, 8, 15)),
    ],
)
def test_past_times_are_parsed(text, wanted):
    assert parse_past(text, NOW) == wanted


@pytest.mark.parametrize("text", ["now+1hour", "tomorrow", "2parsecs ago", "soon"])
def test_times_not_in_the_past_are_refused(text):
    with pytest.raises(UsageError, match="is not a time in the past"):
        parse_past(text, NOW)


@pytest.mark.parametrize(
    ("text", "tasks", "limit"),
    [
        ("5", [5], None),
        ("1-4", [1, 2, 3, 4], None),
        ("0-9:4", [0, 4, 8], None),
        ("1,3,5-6", [1, 3, 5, 6], None),
        ("1-10%2", list(range(1, 11)), 2),
    ],
)
def test_array_ranges_are_parsed(text, tasks, limit):
    assert parse_array(text) == {"tasks": tasks, "limit": limit}


@pytest.mark.parametrize(
    "text",
    ["", "x", "3-1", "1-5:0", "1,1", "1-3,2", "1-4%", "1-4%0", "1-4%x", "-3", "0-999999999", "0-9999,20000", "1--2"],
)
def test_invalid_array_ranges_are_refused(text):
    with pytest.raises(UsageError, match="array"):
        parse_array(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [("3-1", "`3-1` has no tasks: 3 is above 1"), ("1-5:0", "`1-5:0` has no tasks: a step of 0"),
     ("1,0-10000", "`0-10000` has more than 10,000 tasks")],
)  # fmt: skip
def test_the_message_about_an_array_says_what_is_wrong(text, found):
    with pytest.raises(UsageError, match=f"^array `{text}`: {found}$"):
        parse_array(text)
