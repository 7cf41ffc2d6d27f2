"""Settings of the allocator: PYTORCH_CUDA_ALLOC_CONF, parsed as torch parses it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from cotenant.allocator.versions import LARGE_SEGMENT_BYTES, MIN_OWN_SEGMENT_BYTES, AllocatorRules, rules_for
from cotenant.core.errors import UsageError
from cotenant.core.units import MiB

ROUNDUP_INTERVALS = 16
_UINT64 = 2**64
_MAX_MB = (_UINT64 - 1) // MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorOptions:
    """Settings that affect GPU memory; those of pinned host memory are checked and dropped.

    Attributes:
        expandable_segments: one segment per stream and pool that grows by pages, instead of one per request.
        max_split_bytes: blocks of this size or larger are never split; None: all may be.
        max_non_split_rounding_bytes: an unsplittable block may exceed its request by less than this; by default
            the size of a large segment.
        roundup_power2_divisions: for requests of [1, 2), [2, 4), ... [32768, 65536) MiB: number of steps between
            two powers of 2 to which a request is rounded up; 0 and 1 mean steps of 512 B. Smaller requests use
            the first entry, larger ones the last. Empty: no such rounding.
        garbage_collection_threshold: fraction of the allowed memory above which old cached blocks are released
            before a new segment is requested; 0: off. It has no effect without a memory fraction.
        large_segment_bytes: segment size for requests of 1 to 10 MiB, and page size of large expandable segments.
        per_process_memory_fraction: fraction of the GPU's memory that may be reserved.
        throw_on_cudamalloc_oom: fail at once, without releasing the cache, where a segment would exceed that
            fraction.
    """

    expandable_segments: bool = False
    max_split_bytes: int | None = None
    max_non_split_rounding_bytes: int = LARGE_SEGMENT_BYTES
    roundup_power2_divisions: tuple[int, ...] = ()
    garbage_collection_threshold: float = 0.0
    large_segment_bytes: int = LARGE_SEGMENT_BYTES
    per_process_memory_fraction: float = 1.0
    throw_on_cudamalloc_oom: bool = False


def settings_text(environment: Mapping[str, str], version: str) -> str:
    """The settings that torch of `version` reads from these environment variables; empty if none is set."""
    names = rules_for(version).environment_names
    return next((environment[name] for name in names if name in environment), "")


def parse_options(text: str, version: str) -> AllocatorOptions:
    """Options of torch `version` for the settings `text`, e.g. `expandable_segments:True,max_split_size_mb:128`.

    Source: `CUDAAllocatorConfig::parseArgs`, `AcceleratorAllocatorConfig::parseArgs`; see `versions`.
    Not modeled: reserves of address space for expandable segments (2.15), which need no memory.

    Raises:
        UsageError: torch refuses the text, or it has `backend:cudaMallocAsync`, which is not modeled.
    """
    return _Parser(text, version).options()


class _Parser:
    """The tokens and the position `at`; readers of values leave it at the value's last token."""

    def __init__(self, text: str, version: str) -> None:
        self.rules: AllocatorRules = rules_for(version)
        self.version = version
        # Up to torch 2.9 the parser drops blanks only, from 2.10 all white space of C's `isspace`.
        blanks = r"[ \t\n\v\f\r]" if self.rules.wide_integers else " "
        self.tokens: list[str] = re.findall(r"[,:\[\]]|[^,:\[\]]+", re.sub(blanks, "", text))
        self.at = 0
        self.chosen = AllocatorOptions()

    def options(self) -> AllocatorOptions:
        if "large_segment_size_mb" in self.rules.option_keys:
            self.large_segments()
        while self.at < len(self.tokens):
            key = self.tokens[self.at]
            if key not in self.rules.option_keys:
                known = ", ".join(f"`{name}`" for name in sorted(self.rules.option_keys))
                raise UsageError(f"torch {self.version} has no allocator setting `{key}`", hint=f"known: {known}")
            self.separator(key, ":")
            self.at += 1
            self.read(key)
            self.at += 1
            if self.at < len(self.tokens):
                self.separator(key, ",", step=False)
                self.at += 1
        return self.chosen

    def read(self, key: str) -> None:
        reader = _READERS.get(key)
        if reader is None:
            self.skip_value(key)
        else:
            reader(self, key)

    # Tokens

    def token(self, key: str, wanted: str) -> str:
        if self.at >= len(self.tokens):
            raise self.refused(key, "nothing", wanted)
        return self.tokens[self.at]

    def separator(self, key: str, wanted: str, *, step: bool = True) -> None:
        self.at += step
        found = self.token(key, f"`{wanted}`")
        if found != wanted and self.rules.checks_separators:
            raise self.refused(key, f"`{found}`", f"`{wanted}`")

    def refused(self, key: str, found: str, wanted: str) -> UsageError:
        return UsageError(f"allocator setting `{key}`: found {found}, torch {self.version} requires {wanted}")

    # Values

    def boolean(self, key: str) -> bool:
        found = self.token(key, "`True` or `False`")
        if found not in ("True", "False"):
            raise self.refused(key, f"`{found}`", "`True` or `False`")
        return found == "True"

    def integer(self, key: str) -> int:
        """The number at the start of the token, as `stoi` and `stoull` parse it; a negative one wraps, as in C++."""
        found = self.token(key, "a number")
        match = re.match(r"[ \t\n\v\f\r]*([+-]?\d+)", found)
        if match is None:
            raise self.refused(key, f"`{found}`", "a number")
        value = int(match.group(1))
        limit = _UINT64 if self.rules.wide_integers else 2**31
        if not -limit <= value < limit:
            raise self.refused(key, f"`{found}`", f"a number below {limit}")
        return value % _UINT64

    def ratio(self, key: str, wanted: str, *, ends: bool) -> float:
        found = self.token(key, wanted)
        match = re.match(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", found)
        value = float(match.group(0)) if match else -1.0
        if not (0 <= value <= 1 if ends else 0 < value < 1):
            raise self.refused(key, f"`{found}`", wanted)
        return value

    def power_of_two(self, key: str, what: str, *, zero: bool = False) -> int:
        value = self.integer(key)
        if value & (value - 1) or (value == 0 and not zero):
            raise self.refused(key, f"{what} {value}", f"{what} as a power of 2{' or 0' if zero else ''}")
        return value

    def skip_value(self, key: str) -> None:
        if self.token(key, "a value") == "[":
            while self.token(key, "`]`") != "]":
                self.at += 1

    # Keys

    def backend(self, key: str) -> None:
        found = self.token(key, "`native` or `cudaMallocAsync`")
        if found == "cudaMallocAsync":
            raise UsageError(
                "`backend:cudaMallocAsync` is not modeled: the driver, not torch, decides what it reserves",
                hint="estimate with `backend:native`, the default",
            )
        if found != "native":
            raise self.refused(key, f"`{found}`", "`native` or `cudaMallocAsync`")

    def flag(self, key: str) -> None:
        value = self.boolean(key)
        if key == "expandable_segments":
            self.chosen = replace(self.chosen, expandable_segments=value)
        elif key == "throw_on_cudamalloc_oom":
            self.chosen = replace(self.chosen, throw_on_cudamalloc_oom=value)

    def split_size(self, key: str) -> None:
        value_mb = self.integer(key)
        min_mb = self.chosen.large_segment_bytes // MiB + (not self.rules.min_split_mb_is_allowed)
        if value_mb < min_mb:
            raise self.refused(key, f"{value_mb}", f"{min_mb} or more")
        value_bytes = min(value_mb, _MAX_MB) * MiB
        if key == "max_split_size_mb":
            self.chosen = replace(self.chosen, max_split_bytes=value_bytes)
        else:
            self.chosen = replace(self.chosen, max_non_split_rounding_bytes=value_bytes)

    def large_segments(self) -> None:
        """Read before all other keys, wherever it stands: other sizes are compared with it."""
        key = "large_segment_size_mb"
        min_mb = MIN_OWN_SEGMENT_BYTES // MiB + 1
        for at, token in enumerate(self.tokens):
            if token == key:
                self.at = at + 2
                value_mb = self.integer(key)
                if value_mb < min_mb:
                    raise self.refused(key, f"{value_mb}", f"{min_mb} or more")
                size_bytes = min(value_mb, _MAX_MB) * MiB
                self.chosen = AllocatorOptions(large_segment_bytes=size_bytes, max_non_split_rounding_bytes=size_bytes)
        self.at = 0

    def threshold(self, key: str) -> None:
        value = self.ratio(key, "a ratio between 0 and 1", ends=False)
        self.chosen = replace(self.chosen, garbage_collection_threshold=value)

    def fraction(self, key: str) -> None:
        value = self.ratio(key, "a ratio from 0 to 1", ends=True)
        self.chosen = replace(self.chosen, per_process_memory_fraction=value)

    def register_threads(self, key: str) -> None:
        value = self.power_of_two(key, "threads")
        if value > 128:
            raise self.refused(key, f"{value}", "128 or fewer")

    def positive(self, key: str) -> None:
        if self.integer(key) == 0:
            raise self.refused(key, "0", "1 or more")

    def number(self, key: str) -> None:
        self.integer(key)

    def roundup(self, key: str) -> None:
        if self.token(key, "a number or a list") != "[":
            same = (self.power_of_two(key, "divisions"),) * ROUNDUP_INTERVALS
            self.chosen = replace(self.chosen, roundup_power2_divisions=same)
            return
        divisions = [0] * ROUNDUP_INTERVALS
        last, first = 0, True
        self.at += 1
        while self.token(key, "`]`") != "]":
            boundary_at = self.at
            self.separator(key, ":")
            self.at += 1
            value = self.power_of_two(key, "divisions", zero=True)
            value_at, self.at = self.at, boundary_at
            if self.token(key, "a boundary") == ">":
                start = last + 1 if self.rules.rest_from_last_boundary else last
                divisions[start:] = [value] * len(divisions[start:])
            else:
                # Intervals begin at 1 MiB and boundaries are in MiB, so log2 of a boundary is the index of an interval.
                last = min(self.power_of_two(key, "interval").bit_length() - 1, ROUNDUP_INTERVALS - 1)
                if first:
                    divisions[:last] = [value] * last
                    first = False
                divisions[last] = value
            self.at = value_at + 1
            if self.token(key, "`]`") != "]":
                self.separator(key, ",", step=False)
                self.at += 1
        self.chosen = replace(self.chosen, roundup_power2_divisions=tuple(divisions))


_READERS: dict[str, Callable[[_Parser, str], None]] = {
    "backend": _Parser.backend,
    "expandable_segments": _Parser.flag,
    "garbage_collection_threshold": _Parser.threshold,
    "graph_capture_record_stream_reuse": _Parser.flag,
    "max_non_split_rounding_mb": _Parser.split_size,
    "max_split_size_mb": _Parser.split_size,
    "per_process_memory_fraction": _Parser.fraction,
    "pinned_free_catch_all": _Parser.flag,
    "pinned_max_cached_size_mb": _Parser.number,
    "pinned_max_round_threshold_mb": _Parser.number,
    "pinned_num_register_threads": _Parser.register_threads,
    "pinned_reserve_segment_size_mb": _Parser.positive,
    "pinned_use_background_threads": _Parser.flag,
    "pinned_use_cuda_host_register": _Parser.flag,
    "pinned_use_hip_host_register": _Parser.flag,
    "release_lock_on_cudamalloc": _Parser.flag,
    "release_lock_on_hipmalloc": _Parser.flag,
    "roundup_power2_divisions": _Parser.roundup,
    "throw_on_cudamalloc_oom": _Parser.flag,
}
