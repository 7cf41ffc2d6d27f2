"""Which files of tests a process of xdist gets, and in which order: long ones first, those of Slurm together.

With `--dist loadfile` xdist begins with the files that have the most tests. The longest have few, and at the end one
process worked alone. Tests on Slurm mostly wait: in one process they share a cluster, while others use the cores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from xdist.scheduler.loadfile import LoadFileScheduling

ON_SLURM = ("tests/needs_slurm/", "tests/conformance/")
LONG = (
    *ON_SLURM,
    *(f"tests/{folder}/" for folder in ("browser", "contracts", "e2e", "needs_cuda_build", "needs_ray")),
    *(f"tests/{folder}/" for folder in ("needs_torch", "security", "unit/study")),
)
"""Folders of tests that start processes or trace scripts."""


class LongFilesFirst(LoadFileScheduling):
    """Assigns files in the order of `sorted_by_length`, those of Slurm to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return "Slurm" if nodeid.startswith(ON_SLURM) else str(super()._split_scope(nodeid))


def sorted_by_length(items: Sequence[Any]) -> list[Any]:
    """Tests by file: on Slurm, of a long folder, others; among these, files with many tests first."""
    count = Counter(file_of(item) for item in items)

    def place(item: Any) -> tuple[bool, bool, int, str]:
        file = file_of(item)
        return not file.startswith(ON_SLURM), not file.startswith(LONG), -count[file], file

    return sorted(items, key=place)


def file_of(item: Any) -> str:
    """The file of a test, from the root."""
    return str(item.nodeid.partition("::")[0])
