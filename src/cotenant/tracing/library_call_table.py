"""Numbers of the distinct library calls of a trace. A module of its own: nothing here knows events or storages."""

from __future__ import annotations

from collections.abc import Mapping

from cotenant.core.trace import LibraryCall


class LibraryCallTable:
    """Distinct library calls, each once, in the order in which they came; events name them by number."""

    def __init__(self) -> None:
        self._calls: list[LibraryCall] = []
        self._numbers: dict[object, int] = {}

    def number(self, kind: str, thread: str, params: Mapping[str, object]) -> int:
        """The number of a call, which is added if it is new; the parameters are those of `LibraryCall`."""
        key = (kind, thread, tuple(params.items()))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._calls)
            self._calls.append(LibraryCall(kind=kind, thread=thread, params=dict(params)))
        return number

    def alike(self, number: int, params: Mapping[str, object]) -> int:
        """The number of a call that is like another one but for its parameters."""
        call = self._calls[number]
        return self.number(call.kind, call.thread, params)

    def __getitem__(self, number: int) -> LibraryCall:
        return self._calls[number]

    def all(self) -> tuple[LibraryCall, ...]:
        """The calls by number."""
        return tuple(self._calls)
