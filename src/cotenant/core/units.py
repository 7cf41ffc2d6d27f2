"""Bytes, durations and counts as text: parsing and formatting.

Everywhere else bytes are `int` and seconds are `float`.
"""

from __future__ import annotations

import functools
import re

from cotenant.core.errors import UsageError

KiB = 2**10
MiB = 2**20
GiB = 2**30

MAX_BYTES = 2.0**44
"""More than any GPU has; a number of bytes in place of MiB comes out above it."""
MIN_UNITLESS_BYTES = 128 * MiB
"""Of GPU memory, smaller numbers without a unit are taken for a slip: GPUs have 8 to 96 GiB, and few have more."""
MAX_TEXT_CHARS = 40
"""A size or duration with more characters is a mistake."""

_SCALE = {
    "": MiB,
    "b": 1,
    "k": KiB,
    "kib": KiB,
    "kb": 10**3,
    "m": MiB,
    "mib": MiB,
    "mb": 10**6,
    "g": GiB,
    "gib": GiB,
    "gb": 10**9,
    "t": 2**40,
    "tib": 2**40,
    "tb": 10**12,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(text: str) -> int:
    """Bytes in `12G`, `500MiB`, `1.5 GB` or `8000`.

    As in Slurm, a bare letter is binary (`12G` = 12 * 2**30) and a number without a unit is in MiB. `GB` is decimal,
    `GiB` binary. Options and lines in scripts are read here, CARMA's job files are in MiB, the API has bytes.

    Raises:
        UsageError: the text is not a size, or is zero.
    """
    match = _SIZE.fullmatch(text)
    scale = _SCALE.get(match.group(2).lower()) if match else None
    if match is None or scale is None:
        raise UsageError(f"`{text}` is not a size in bytes", hint="write e.g. `12G`, `500MiB` or `1.5GB`")
    size = float(match.group(1)) * scale
    if size >= MAX_BYTES:
        raise UsageError(
            f"`{shortened(text)}` is more than any GPU has", hint="write e.g. `12G`; a number without a unit is in MiB"
        )
    value = int(size)
    if value <= 0:
        raise UsageError(f"`{text}` is zero bytes", hint="give a size above zero, e.g. `12G`")
    return value


def parse_gpu_memory(text: str) -> int:
    """Bytes that a job needs on a GPU, as `parse_bytes`, without the slip `24` for `24G`.

    Raises:
        UsageError: as `parse_bytes`; or a number without a unit is below 128, in MiB, which is less than PyTorch's
            CUDA context takes.
    """
    value = parse_bytes(text)
    number = text.strip()
    if number[-1].isdecimal() and value < MIN_UNITLESS_BYTES:
        raise UsageError(
            f"`{number}` is {number} MiB, less than a CUDA context takes",
            hint=f"write `{number}G` for GiB, or `{number}M` if MiB are meant",
        )
    return value


def shortened(text: str) -> str:
    """`text` for a message; a very long one is cut."""
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[: MAX_TEXT_CHARS - 3]}..."


@functools.lru_cache(maxsize=1024)
def format_bytes(value: int | None) -> str:
    """`value` for people: `524.0 MiB`, `19.4 GiB`; a dash for None."""
    if value is None:
        return "-"
    sign, size = ("-", -value) if value < 0 else ("", value)
    if size < KiB:
        return f"{sign}{size} B"
    for unit, scale in (("KiB", KiB), ("MiB", MiB)):
        if size < scale * 1024:
            return f"{sign}{size / scale:.1f} {unit}"
    return f"{sign}{size / GiB:.1f} GiB"


def parse_duration(text: str) -> float:
    """Seconds in Slurm's `MM`, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM` or `D-HH:MM:SS`.

    Raises:
        UsageError: the text is none of these, or is zero.
    """
    days, dash, clock = text.strip().rpartition("-")
    parts = clock.split(":")
    digits = all(part.isascii() and part.isdigit() for part in parts)
    if not digits or len(parts) > 3 or (dash and not (days.isascii() and days.isdigit())):
        raise UsageError(f"`{text}` is not a duration", hint="write `MM`, `HH:MM:SS` or `D-HH:MM:SS`, as for Slurm")
    if len(text) > MAX_TEXT_CHARS:
        raise UsageError(
            f"`{shortened(text)}` has more than {MAX_TEXT_CHARS} characters", hint="leave it out for no limit"
        )
    numbers = [int(part) for part in parts]
    if dash:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    elif len(numbers) == 1:
        hours, minutes, seconds = 0, numbers[0], 0
    elif len(numbers) == 2:
        hours, minutes, seconds = 0, numbers[0], numbers[1]
    else:
        hours, minutes, seconds = numbers
    total_s = float(int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds)
    if total_s <= 0:
        raise UsageError(f"`{text}` is zero seconds", hint="give a duration above zero, e.g. `00:30:00`")
    return total_s


def format_duration(value_s: float | None) -> str:
    """`value_s` for people: `8.2s`, `3m12s`, `2h05m`, `1d04h`; a dash for None."""
    if value_s is None:
        return "-"
    if value_s < 0:
        return "-" + format_duration(-value_s)
    if value_s < 60:
        return f"{value_s:.1f}s" if value_s < 10 else f"{value_s:.0f}s"
    whole = round(value_s)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def counted(number: int, noun: str) -> str:
    """`1 GPU`, `3 GPUs`: a number with its noun, which takes an `s` in the plural."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_energy(energy_j: float | None) -> str:
    """`3.2 Wh`, `1.25 kWh`; a dash for None."""
    if energy_j is None:
        return "-"
    watt_hours = energy_j / 3600
    return f"{watt_hours / 1000:.2f} kWh" if watt_hours >= 1000 else f"{watt_hours:.1f} Wh"
