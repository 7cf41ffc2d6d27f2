"""The memory history of a run on the null GPU: each allocation and free in order, and where the script was."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotenant.nullgpu.wheels import NullGpuError
from cotenant.osutil import atomic

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class RequestHistory:
    """Requests to the caching allocator of one GPU.

    Attributes:
        events: a positive number is an allocation of so many bytes; -n is the free of the n-th allocation, from 1.
        places: distinct Python stacks, innermost frame first.
        place_of: for each allocation, the index of its stack in `places`.
    """

    events: tuple[int, ...] = ()
    places: tuple[str, ...] = ()
    place_of: tuple[int, ...] = ()

    @property
    def allocations(self) -> tuple[int, ...]:
        """Requested sizes in bytes, in order."""
        return tuple(size for size in self.events if size > 0)

    def place(self, allocation: int) -> str:
        """The stack of an allocation, counted from 0; empty if none was recorded."""
        return self.places[self.place_of[allocation]] if allocation < len(self.place_of) else ""


def write_history(path: Path, history: RequestHistory, about: Mapping[str, Any], *, with_places: bool = False) -> None:
    """Write `history`, and `about`, what it is of; equal input gives equal bytes. `with_places`: its stacks as well."""
    answer = {**about, "format": _FORMAT, "events": history.events}
    if with_places:
        answer |= {"places": history.places, "place_of": history.place_of}
    text = json.dumps(answer, sort_keys=True, separators=(",", ":"))
    with (
        atomic.replacing(path, mode=0o644) as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as file,
    ):
        file.write(text.encode())


def read_history(path: Path) -> tuple[RequestHistory, dict[str, Any]]:
    """A history that `write_history` wrote, and what it is of.

    Raises:
        NullGpuError: it has another format.
    """
    with gzip.open(path, "rt") as file:
        about = json.load(file)
    found, events = about.pop("format", None), about.pop("events", ())
    if found != _FORMAT:
        raise NullGpuError(f"`{path}` has format {found}, wanted {_FORMAT}", hint="record it again")
    places, place_of = about.pop("places", ()), about.pop("place_of", ())
    return RequestHistory(_checked(events, path), tuple(places), tuple(place_of)), about


def _checked(events: Sequence[Any], path: Path) -> tuple[int, ...]:
    if not all(isinstance(event, int) and event for event in events):
        raise NullGpuError(f"`{path}` has an event that is no size and no free", hint="record it again")
    return tuple(events)
