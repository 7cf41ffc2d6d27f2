"""Allocator settings are parsed as the installed torch parses them; this needs no GPU."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.allocator import parse_options
from cotenant.core.errors import UsageError

torch = pytest.importorskip("torch")

SYMBOL = "_ZN3c1016CachingAllocator26AcceleratorAllocatorConfig24roundup_power2_divisionsEm"
SET = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
VERSION = torch.__version__


@pytest.fixture(scope="module")
def divisions_of():
    """Divisions that torch uses for a size, after `SET`."""
    if SET is None:
        pytest.skip(f"torch {VERSION} has no settings shared by all accelerators")
    try:
        function = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))[SYMBOL]
    except (OSError, AttributeError):
        pytest.skip(f"torch {VERSION} does not export its divisions")
    function.restype, function.argtypes = ctypes.c_size_t, [ctypes.c_size_t]
    yield lambda size: int(function(size))
    SET("")


entries = st.lists(
    st.tuples(st.sampled_from([1, 2, 4, 16, 64, 256, 1024, 32768, 65536]), st.sampled_from([0, 1, 2, 4, 8])),
    min_size=1,
    max_size=5,
)


@given(entries=entries, rest=st.one_of(st.none(), st.sampled_from([0, 1, 2, 8])))
@settings(max_examples=100, deadline=None)
def test_divisions_are_parsed_as_by_torch(divisions_of, entries, rest):
    listed = ",".join([f"{boundary}:{value}" for boundary, value in entries] + ([] if rest is None else [f">:{rest}"]))
    text = f"roundup_power2_divisions:[{listed}]"
    SET(text)
    assert parse_options(text, VERSION).roundup_power2_divisions == tuple(
        divisions_of(2 ** (20 + i)) for i in range(16)
    )


TEXTS = [
    "max_split_size_mb:19",
    "max_split_size_mb:20",
    "max_split_size_mb,64",
    "max_split_size_mb 64",
    "max_split_size_mb:",
    "max_split_size_mb:64mb",
    "max_split_size_mb:x",
    "max_split_size_mb:-1",
    "max_non_split_rounding_mb:19",
    "expandable_segments:true",
    "expandable_segments:True,",
    "garbage_collection_threshold:0",
    "garbage_collection_threshold:0.5",
    "garbage_collection_threshold:1.0",
    "roundup_power2_divisions:0",
    "roundup_power2_divisions:3",
    "roundup_power2_divisions:[3:2]",
    "roundup_power2_divisions:[4:2",
    "roundup_power2_divisions:[]",
    "large_segment_size_mb:10",
    "large_segment_size_mb:11",
    "large_segment_size_mb:30,max_split_size_mb:29",
    "max_split_size_mb:29,large_segment_size_mb:30",
]

TRY_ALL = """
import os, sys, torch
for text in sys.argv[1:]:
    child = os.fork()  # some settings outlive the next call
    if child == 0:
        try:
            torch._C._accelerator_setAllocatorSettings(text)
        except BaseException:
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def is_accepted(text):
    try:
        parse_options(text, VERSION)
    except UsageError:
        return False
    return True


def test_settings_are_accepted_or_refused_as_by_torch():
    if SET is None:
        pytest.skip(f"torch {VERSION} has no settings shared by all accelerators")
    done = subprocess.run([sys.executable, "-c", TRY_ALL, *TEXTS], capture_output=True, text=True, check=True)
    by_torch = [line == "0" for line in done.stdout.split()]
    assert dict(zip(TEXTS, map(is_accepted, TEXTS), strict=True)) == dict(zip(TEXTS, by_torch, strict=True))
    assert True in by_torch
    assert False in by_torch
