"""The rules of the CUDA caching allocator by version of torch.

Sources, as abbreviated in `sources` below:
    header   `c10/core/AllocatorConfig.h` and `c10/cuda/CUDAAllocatorConfig.h` as shipped in the wheels of torch
             2.4.1, 2.5.1, 2.6.0, 2.7.1, 2.8.0, 2.9.1, 2.10.0, 2.11.0, 2.12.0, 2.13.0, 2.14.1 and 2.15.0
    library  `libc10.so` and `libc10_cuda.so` of the wheels of torch 2.4.1, 2.5.1, 2.6.0, 2.8.0, 2.9.1, 2.10.0 and
             2.13.0, called with settings (`AllocatorConfig::roundup_power2_divisions`)
    source   `c10/cuda/CUDACachingAllocator.cpp`, PyTorch repository
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from cotenant.core.errors import UsageError
from cotenant.core.units import MiB

MIN_BLOCK_BYTES = 512
SMALL_REQUEST_BYTES = 1 * MiB
SMALL_SEGMENT_BYTES = 2 * MiB
LARGE_SEGMENT_BYTES = 20 * MiB
MIN_OWN_SEGMENT_BYTES = 10 * MiB
ROUND_LARGE_BYTES = 2 * MiB
"""Constants that are the same in all versions from 2.4 to 2.15: kMinBlockSize, kSmallSize, kSmallBuffer, kLargeBuffer
(from 2.11 the default of `large_segment_size_mb`), kMinLargeAlloc, kRoundLarge. Source: header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorRules:
    """The rules that differ between versions of torch.

    Attributes:
        since: first version with these rules, as (major, minor).
        option_keys: valid keys of settings; any other is an error.
        environment_names: environment variables with the settings; the first one that is set counts.
        checks_separators: a missing `:` or `,` is an error; from 2.10 torch reads the token and ignores it.
        wide_integers: sizes are parsed as 64-bit numbers (`stoull`), before 2.10 as 32-bit ones (`stoi`).
        min_split_mb_is_allowed: `max_split_size_mb` may equal the size of a large segment; before 2.10 it must be
            larger.
        rest_from_last_boundary: in `roundup_power2_divisions:[256:4,>:1]`, `>` begins after the interval of 256 MiB;
            before 2.10 it overrides that interval.
        full_fraction_is_no_limit: a memory fraction of 1 removes the limit; before 2.10 the limit is the total.
        orders_by_age: equal free blocks are taken from the oldest segment; before 2.13 by address alone.
        beyond_table: the version is newer than the newest verified one; its rules are assumed unchanged.
        sources: of each difference.
    """

    since: tuple[int, int]
    option_keys: frozenset[str]
    environment_names: tuple[str, ...] = ("PYTORCH_CUDA_ALLOC_CONF",)
    checks_separators: bool = True
    wide_integers: bool = False
    min_split_mb_is_allowed: bool = False
    rest_from_last_boundary: bool = False
    full_fraction_is_no_limit: bool = False
    orders_by_age: bool = False
    beyond_table: bool = False
    sources: tuple[str, ...] = field(default=())


_KEYS_2_4 = frozenset(
    {
        "backend",
        "expandable_segments",
        "garbage_collection_threshold",
        "max_split_size_mb",
        "pinned_num_register_threads",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
        "roundup_power2_divisions",
    }
)
_KEYS_2_6 = _KEYS_2_4 | {"max_non_split_rounding_mb", "pinned_use_background_threads"}
_KEYS_2_9 = _KEYS_2_6 | {"graph_capture_record_stream_reuse"}
_KEYS_2_10 = _KEYS_2_9 | {"per_process_memory_fraction", "pinned_reserve_segment_size_mb"}
_KEYS_2_11 = _KEYS_2_10 | {"large_segment_size_mb"}
_KEYS_2_12 = _KEYS_2_11 | {"pinned_free_catch_all", "throw_on_cudamalloc_oom"}
_KEYS_2_13 = _KEYS_2_12 | {"pinned_max_cached_size_mb", "pinned_max_round_threshold_mb"}
_KEYS_2_15 = _KEYS_2_13 | {"expandable_segments_reserve", "expandable_segments_reserve_by_class"}


def _since_2_10(minor: int, keys: frozenset[str], *sources: str) -> AllocatorRules:
    return AllocatorRules(
        since=(2, minor),
        option_keys=keys,
        environment_names=("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
        checks_separators=False,
        wide_integers=True,
        min_split_mb_is_allowed=True,
        rest_from_last_boundary=True,
        full_fraction_is_no_limit=True,
        orders_by_age=minor >= 13,
        sources=sources,
    )


RULES_BY_VERSION: tuple[AllocatorRules, ...] = (
    AllocatorRules(since=(2, 4), option_keys=_KEYS_2_4, sources=("keys, order of variables: header, library",)),
    AllocatorRules(since=(2, 6), option_keys=_KEYS_2_6, sources=("max_non_split_rounding_mb: header, library",)),
    AllocatorRules(since=(2, 9), option_keys=_KEYS_2_9, sources=("keys: header, library",)),
    _since_2_10(
        10,
        _KEYS_2_10,
        "keys: header, library",
        "parser moved to AcceleratorAllocatorConfig: lenient separators, `>` and minimum split: library 2.9.1, 2.10.0",
        "PYTORCH_ALLOC_CONF, read after PYTORCH_CUDA_ALLOC_CONF: library 2.10.0",
        "fraction 1: source, `setMemoryFraction` as of the option per_process_memory_fraction",
    ),
    _since_2_10(11, _KEYS_2_11, "large_segment_size_mb: header"),
    _since_2_10(12, _KEYS_2_12, "throw_on_cudamalloc_oom: header"),
    _since_2_10(
        13,
        _KEYS_2_13,
        "keys: header, library",
        "order of equal blocks: PyTorch pull request 183591, and 2.13.0 on a null GPU; 2.12 was not looked at",
    ),
    _since_2_10(15, _KEYS_2_15, "reserve of address space by class: header"),
)

_OLDEST_VERSION = RULES_BY_VERSION[0].since
_NEWEST_VERIFIED = (2, 15)


def rules_for(version: str) -> AllocatorRules:
    """Rules of the torch named by `version`, e.g. `2.11.0+cu128`.

    A version newer than the table gets the last entry, with `beyond_table`.

    Raises:
        UsageError: the text is not a version, or the version is older than the table.
    """
    match = re.match(r"v?(\d+)\.(\d+)", version.strip())
    if match is None:
        raise UsageError(f"`{version}` is not a version of torch", hint="write e.g. `2.11.0` or `2.11.0+cu128`")
    wanted = (int(match.group(1)), int(match.group(2)))
    if wanted < _OLDEST_VERSION:
        oldest = ".".join(str(part) for part in _OLDEST_VERSION)
        raise UsageError(
            f"the allocator of torch {version} is not modeled",
            hint=f"torch {oldest} or newer is",
        )
    rules = next(rules for rules in reversed(RULES_BY_VERSION) if rules.since <= wanted)
    return rules if wanted <= _NEWEST_VERIFIED else replace(rules, beyond_table=True)
