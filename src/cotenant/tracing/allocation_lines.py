"""The lines of a script that allocate: one for each part of the memory, for reports of what changed.

A part is a category and a module. Small storages are left out, and a module's line is looked up once in each phase: it
is the line that calls the module, or code around it. Autograd's thread has no Python below it, so what it allocates is
of the line that started the backward pass.

A module of its own: the recorder counts bytes, and only this part looks at the script's frames.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from cotenant.core.trace import MemoryEvent, part_of
from cotenant.tracing.script_location import innermost_line

_MIN_BYTES = 64 << 10
_VARYING_PHASES = ("load", "forward")  # in which a script allocates at several lines outside of modules


class AllocationLines:
    """Lines so far."""

    def __init__(self) -> None:
        self._of_phase: dict[str, str | None] = {}
        self._of_module: dict[tuple[str, str], str | None] = {}
        self._of_storage: dict[int, str] = {}

    def enter_phase(self, phase: str) -> None:
        """A phase begins: its first line stands for what has none of its own."""
        if phase not in self._of_phase:
            self._of_phase[phase] = innermost_line()

    def add(self, storage_id: int, nbytes: int, phase: str, module: str) -> None:
        """A storage is allocated."""
        if nbytes < _MIN_BYTES:
            return
        if not module and phase in _VARYING_PHASES:
            line = innermost_line()
        else:
            key = phase, module
            if key not in self._of_module:
                self._of_module[key] = innermost_line() or self._of_phase.get(phase)
            line = self._of_module[key]
        if line is not None:
            self._of_storage[storage_id] = line

    def by_part(self, events: Iterable[MemoryEvent]) -> dict[str, str]:
        """The line that allocated most bytes of each part, by `part_of`."""
        sums: dict[str, Counter[str]] = {}
        for event in events:
            if event.action == "alloc" and (line := self._of_storage.get(event.storage_id)) is not None:
                sums.setdefault(part_of(event.category, event.module), Counter())[line] += event.bytes
        return {part: max(lines, key=lambda line: lines[line]) for part, lines in sums.items()}
