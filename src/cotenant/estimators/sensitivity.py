"""How sensitive the reserved bytes are to details that a trace cannot know: replays with small changes.

Where blocks lie depends on the allocator's history, so one more workspace can change the reserved bytes by far more
than its own size, sometimes between two states with nothing in between.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cotenant.core.trace import LibraryCall, MemoryEvent, MemoryTrace
from cotenant.core.units import MiB
from cotenant.estimators.lowering import ConvWorkspace
from cotenant.estimators.replay_input import ReplayInput, SoftwareStack, conv_of, make_replay_input
from cotenant.gpu_specs import GpuSpec

_REPLAYS = 8
_EVENTS = 120_000
_NO_WORKSPACE = 0.1
_LATE = 0.1
_LATE_EVENTS = 3
_STRAY_BYTES = (2 * MiB, 8 * MiB)
_STRAY_ID = -2
"""An id that no storage of a trace has."""
_STATE_GAP = 0.04
_STATE_GAP_BYTES = 64 * MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedRange:
    """The range of the reserved bytes over slightly changed replays.

    Attributes:
        low_bytes, high_bytes: minimum and maximum, the unchanged replay included.
        states: one range (low, high), or two where the values form two distant groups.
        replays: number of changed replays.
        split_bytes: increase in one more replay, which is not part of the range, where every suspected convolution
            is split over the elements of its kernel (`ConvRule.split_bytes`).
    """

    low_bytes: int
    high_bytes: int
    states: tuple[tuple[int, int], ...]
    replays: int
    split_bytes: int = 0


def reserved_range_of(trace: MemoryTrace, gpu: GpuSpec, stack: SoftwareStack, reserved_bytes: int) -> ReservedRange:
    """The range around `reserved_bytes` of the unchanged replay.

    Up to 8 replays (at least 2; fewer for long traces) are changed with a fixed seed. Every other one has one stray
    block of 2 to 8 MiB, freed later or never. The others free a tenth of the storages up to 3 events later, and have
    ascending driver addresses. In all of them a tenth of the convolutions use an algorithm without a workspace; in
    half of them the second guess of `ConvRule` holds; in every fourth, autograd's thread shares the cuBLAS handle of
    the main thread.
    """
    count = max(2, min(_REPLAYS, _EVENTS // max(1, len(trace.events))))
    rules = _rules_of(gpu, stack)
    values = [_changed(trace, gpu, stack, seed, rules).peak_reserved_bytes() for seed in range(count)]
    values.append(reserved_bytes)
    return ReservedRange(
        low_bytes=min(values),
        high_bytes=max(values),
        states=states_of(values),
        replays=count,
        split_bytes=_split_bytes(trace, gpu, stack, reserved_bytes, rules[0]),
    )


def _rules_of(gpu: GpuSpec, stack: SoftwareStack) -> tuple[ConvWorkspace, ConvWorkspace]:
    """The workspaces of convolutions, and those with the second guess."""
    first, second = (_remembering(conv_of(gpu, stack, second_guess=guess)) for guess in (False, True))
    return first, second


def _remembering(conv: ConvWorkspace) -> ConvWorkspace:
    """`conv` with its answers for the calls of one trace: a rule asks tables and trees, and every replay asks it."""
    known: dict[int, int] = {}

    def remembered(op: LibraryCall) -> int:
        nbytes = known.get(id(op))
        if nbytes is None:
            nbytes = known[id(op)] = conv(op)
        return nbytes

    return remembered


def _split_bytes(
    trace: MemoryTrace, gpu: GpuSpec, stack: SoftwareStack, reserved_bytes: int, conv: ConvWorkspace
) -> int:
    """See `ReservedRange.split_bytes`; 0 without a replay where no call is suspected."""
    rule = conv_of(gpu, stack)
    reported = {id(op): rule.split_bytes(op) for op in trace.ops if op.kind.startswith("conv")}
    split = {key: nbytes for key, nbytes in reported.items() if nbytes is not None}
    if not split:
        return 0
    replay_input = make_replay_input(trace, gpu, stack, conv=lambda op: split[id(op)] if id(op) in split else conv(op))
    return max(0, replay_input.peak_reserved_bytes() - reserved_bytes)


def states_of(values: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """One range of `values`, or two if the widest gap is at least 64 MiB, 4 %, and half of the whole range."""
    ordered = sorted(values)
    if len(ordered) < 2:
        return ((ordered[0], ordered[-1]),)
    gap, at = max((after - before, i) for i, (before, after) in enumerate(itertools.pairwise(ordered)))
    if gap < max(_STATE_GAP_BYTES, _STATE_GAP * ordered[0], (ordered[-1] - ordered[0]) / 2):
        return ((ordered[0], ordered[-1]),)
    return ((ordered[0], ordered[at]), (ordered[at + 1], ordered[-1]))


def _changed(
    trace: MemoryTrace, gpu: GpuSpec, stack: SoftwareStack, seed: int, rules: Sequence[ConvWorkspace]
) -> ReplayInput:
    """The changed replay of a number; `rules`: of `_rules_of`, for the operators of `trace` alone."""
    chance = random.Random(seed)  # noqa: S311 - no secret depends on it
    if seed % 4 == 3:
        trace = replace(trace, ops=tuple(_on_main_thread(op) for op in trace.ops))
    conv = rules[seed % 4 in {1, 2}]
    replay_input = make_replay_input(trace, gpu, stack, conv=_with_gaps(trace, conv, chance))
    if seed % 2:
        return replace(replay_input, events=_with_late_frees(replay_input.events, chance), descending=False)
    return replace(replay_input, events=_with_stray(replay_input.events, chance, stays=seed % 4 == 0))


def _on_main_thread(op: LibraryCall) -> LibraryCall:
    return replace(op, thread="main") if op.kind.startswith("gemm") else op


def _with_gaps(trace: MemoryTrace, conv: ConvWorkspace, chance: random.Random) -> ConvWorkspace:
    """`conv`, but 0 bytes for a random tenth of the calls of `trace`."""
    without = {id(op) for op in trace.ops if chance.random() < _NO_WORKSPACE}
    return lambda op: 0 if id(op) in without else conv(op)


def _with_late_frees(events: tuple[MemoryEvent, ...], chance: random.Random) -> tuple[MemoryEvent, ...]:
    # A place is `at`, or `at + late`; of two events with one place, the late one comes first.
    width = _LATE_EVENTS + 1
    places = list(range(0, width * len(events), width))
    drawn, randint = chance.random, chance.randint
    for at, event in enumerate(events):
        if event[0] == "free" and drawn() < _LATE:
            places[at] += _LATE_EVENTS * randint(1, _LATE_EVENTS)  # `width * (at + late) - late`
    return tuple(map(events.__getitem__, sorted(range(len(events)), key=places.__getitem__)))


def _with_stray(events: tuple[MemoryEvent, ...], chance: random.Random, *, stays: bool) -> tuple[MemoryEvent, ...]:
    if not events:
        return events
    born = chance.randrange(len(events))
    stray = events[born]._replace(
        action="alloc",
        storage_id=_STRAY_ID,
        bytes=chance.randint(*_STRAY_BYTES),
        category="workspace",
        stream=0,
        device=0,
    )
    if stays:
        return (*events[:born], stray, *events[born:])
    dies = chance.randrange(born, len(events))
    gone = stray._replace(action="free", bytes=0, phase=events[dies].phase)
    return (*events[:born], stray, *events[born:dies], gone, *events[dies:])
