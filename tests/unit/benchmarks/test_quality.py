"""Sections of the quality benchmark whose laws are refitted."""

from __future__ import annotations

from benchmarks.scheduler.quality import refitted
from cotenant.core.units import GiB
from cotenant.scheduling.placement.pairing import rounded_smact_by_memory


def test_a_refitted_section_neither_takes_nor_leaves_a_cached_prediction() -> None:
    shipped = rounded_smact_by_memory(2 * GiB)
    with refitted(0, 1):
        assert rounded_smact_by_memory(2 * GiB) != shipped
    assert rounded_smact_by_memory(2 * GiB) == shipped
