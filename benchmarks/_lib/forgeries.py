"""Forged content for everything that a user's process can write and cotenant reads. Deterministic by the generator."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Iterator
from typing import Any

HOSTILE: tuple[Any, ...] = (
    10**4000,
    -(10**4000),
    2**63,
    2**53 + 1,
    -1,
    0,
    1e308,
    -0.5,
    math.nan,
    math.inf,
    -math.inf,
    True,
    False,
    None,
    "",
    "0",
    "9" * 5000,
    "\x00",
    "\x1b[2J\x1b]0;owned\x07",
    "\ud800",
    "a" * 20_000,
    "../../../etc/shadow",
    [],
    [[]],
    {},
    {"type": "Job"},
    {"": ""},
    [0] * 2000,
)
"""Values in place of an honest one."""

MAX_LINE_BYTES = 2**20
DEPTH = 100_000


def forged_value(honest: Any, rng: random.Random) -> Any:
    """`honest` with one to three of its parts replaced, removed, repeated or renamed."""
    forged = copy.deepcopy(honest)
    for _ in range(rng.randint(1, 3)):
        places = list(_places(forged))
        if not places:
            return rng.choice(HOSTILE)
        container, key = rng.choice(places)
        how = rng.random()
        if how < 0.7:
            container[key] = copy.deepcopy(rng.choice(HOSTILE))
        elif how < 0.85:
            del container[key]
        elif isinstance(container, dict):
            container[f"{key}x"] = container.pop(key)
        else:
            container += container[:50]
    return forged


def forged_bytes(honest: Any, rng: random.Random) -> bytes:
    """A file or line with a forged JSON value, or with no JSON at all."""
    how = rng.random()
    if how < 0.8:
        return _dump(forged_value(honest, rng))
    text = bytearray(_dump(honest))
    if how < 0.9:  # corrupted
        for _ in range(rng.randint(1, 8)):
            text[rng.randrange(len(text))] = rng.randrange(256)
        return bytes(text).replace(b"\n", b" ")
    return rng.choice(
        (
            b"",
            bytes(text[: rng.randrange(len(text))]),
            b"[" * DEPTH,
            b'{"a":' * DEPTH,
            b"\xff\xfe\x00",
            rng.randbytes(rng.randint(1, 2000)).replace(b"\n", b" "),
            b'"' + b"x" * (MAX_LINE_BYTES + rng.randint(-2, 2)) + b'"',
            b"1" * 5000,
            b"null",
        )
    )


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in `value` with each of its keys or indices."""
    if isinstance(value, dict):
        keys: list[Any] = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))[:50]
    else:
        return
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _dump(value: Any) -> bytes:
    """As `json.dumps`, which refuses integers of more than 4300 digits since Python 3.10.7."""
    huge = {10**4000: "1" + "0" * 4000, -(10**4000): "-1" + "0" * 4000}
    names = {number: f"huge-number-{index}" for index, number in enumerate(huge)}

    def named(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: named(item) for key, item in part.items()}
        if isinstance(part, list):
            return [named(item) for item in part]
        return names.get(part, part) if type(part) is int else part

    text = json.dumps(named(value))
    for number, name in names.items():
        text = text.replace(f'"{name}"', huge[number])
    return text.encode()
