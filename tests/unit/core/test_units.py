"""Sizes as people write them."""

from __future__ import annotations

import pytest

from cotenant.core.errors import UsageError
from cotenant.core.units import GiB, MiB, counted, parse_bytes, parse_gpu_memory


@pytest.mark.parametrize(
    ("text", "size"),
    [
        pytest.param("8000", 8000 * MiB, id="no unit: MiB, as in Slurm"),
        pytest.param("0.5", MiB // 2, id="half a MiB"),
        pytest.param("8000M", 8000 * MiB, id="M"),
        pytest.param("12G", 12 * GiB, id="G"),
        pytest.param("1.5 GB", 1_500_000_000, id="decimal"),
        pytest.param("500MiB", 500 * MiB, id="MiB"),
        pytest.param("4096B", 4096, id="bytes, said so"),
    ],
)
def test_a_size(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("8589934592", "`8589934592` is more than any GPU has", id="8 GiB in bytes"),
        pytest.param("16T", "more than any GPU has", id="as much as no GPU has"),
        pytest.param("0", "`0` is zero bytes", id="zero"),
        pytest.param("-1", "is not a size in bytes", id="negative"),
        pytest.param("12X", "is not a size in bytes", id="no unit of memory"),
    ],
)
def test_what_is_no_size_is_refused(text, why):
    with pytest.raises(UsageError, match=why):
        parse_bytes(text)


@pytest.mark.parametrize(("text", "mib"), [("128", 128), ("12000", 12000), ("24M", 24), ("1G", 1024)])
def test_gpu_memory_has_a_unit_or_is_not_tiny(text, mib):
    assert parse_gpu_memory(text) == mib * MiB


@pytest.mark.parametrize(("number", "text"), [(0, "0 GPUs"), (1, "1 GPU"), (2, "2 GPUs")])
def test_a_noun_is_singular_only_after_one(number, text):
    assert counted(number, "GPU") == text
