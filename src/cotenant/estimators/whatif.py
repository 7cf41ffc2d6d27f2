"""What a change would save, computed from the trace without running the script again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cotenant.core.errors import UsageError
from cotenant.core.trace import MemoryEvent, MemoryTrace
from cotenant.estimators.further_epochs import continue_training
from cotenant.estimators.margin import margin_of
from cotenant.estimators.replay_input import ReplayInput, make_replay_input
from cotenant.estimators.traced_result import TracedResult

SETTINGS = (
    "expandable_segments:True",
    "max_split_size_mb:128",
    "max_split_size_mb:512",
    "garbage_collection_threshold:0.8",
    "roundup_power2_divisions:8",
)
_ASSUMED = "* optimizer states in 8 bits; what such an optimizer needs besides them is unknown"
_NOT_COMPUTED = (
    "not computed: gradient checkpointing, mixed precision, another optimizer or model change what the script does; "
    "estimate it with its own options for them"
)

_STATE = "optimizer state"
_MIN_8BIT_BYTES = 4096 * 4
_BLOCK = 256
"""States of fewer than 4096 values stay in float32; others get a float32 scale for each block of values: bitsandbytes,
`optim/optimizer.py`, `Optimizer2State.init_state` (commit 06029dd). There a block has 2048 values; 256 are assumed,
which adds 1.4 % to the 8-bit states, and covers smaller blocks too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """A change, and the memory with it.

    Attributes:
        kind: `setting` of PYTORCH_CUDA_ALLOC_CONF, or `optimizer`; `assumed`: needs more than the allocator's rules.
        bound_bytes: with the spread of the unchanged estimate.
        saves_bytes: reduction of the bound; negative where the change costs memory.
    """

    name: str
    kind: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    bound_bytes: int
    saves_bytes: int
    assumed: bool = False


def what_if(result: TracedResult) -> tuple[Saving, ...]:
    """All changes that can be computed, with unlimited memory; without settings that this torch does not know."""
    return tuple(_changes(result))


def notes_on(changes: Sequence[Saving]) -> tuple[str, ...]:
    """What to say below a table of changes, in which those that are assumed are marked by a star."""
    return (_ASSUMED, _NOT_COMPUTED) if any(change.assumed for change in changes) else (_NOT_COMPUTED,)


def _changes(result: TracedResult) -> Iterator[Saving]:
    stack = result.replay_input.stack
    for setting in SETTINGS:
        try:
            replay_input = result.replay_input.with_settings(merged(stack.alloc_conf, setting))
        except UsageError:
            continue
        yield _change(result, setting, "setting", replay_input)
    smaller = with_8bit_states(result.trace)
    if smaller.events != result.trace.events:
        gpu = result.replay_input.gpu
        replay_input = make_replay_input(continue_training(smaller, gpu, stack), gpu, stack)
        yield _change(result, "8-bit optimizer states", "optimizer", replay_input)


def _change(result: TracedResult, name: str, kind: str, replay_input: ReplayInput) -> Saving:
    replayed = replay_input.replay()
    reserved = replayed.peak_reserved_bytes
    margin = margin_of(
        result.trace,
        replay_input.gpu,
        replayed,
        result.spread_bytes,
        result.coverage,
        result.replay_input.stack.cudnn_workspaces,
        split_bytes=result.reserved_range.split_bytes,
        torch_version=result.replay_input.stack.torch_version,
    )
    bound = reserved + replay_input.gpu.context.typical_bytes + margin.bytes
    if kind == "optimizer":
        # Without convolutions the margin grows with reserved minus allocated bytes. Smaller states in unchanged
        # segments increase that difference, but not the uncertainty: keep the margin of the unchanged estimate.
        bound = min(bound, reserved + result.fit.bound_bytes - result.fit.reserved_bytes)
    return Saving(
        name=name,
        kind=kind,
        peak_allocated_bytes=replayed.peak_allocated_bytes,
        peak_reserved_bytes=reserved,
        bound_bytes=bound,
        saves_bytes=result.fit.bound_bytes - bound,
        assumed=kind == "optimizer",
    )


def merged(alloc_conf: str, setting: str) -> str:
    """`alloc_conf` with one setting replaced or added."""
    key = setting.partition(":")[0]
    rest = re.sub(rf"(^|,)\s*{key}\s*:\s*(\[[^\]]*\]|[^,]*)", "", alloc_conf).strip(",")
    return f"{rest},{setting}" if rest else setting


def with_8bit_states(trace: MemoryTrace) -> MemoryTrace:
    """`trace` with float32 optimizer states of at least 4096 values in 8 bits, and a float32 scale for each 256.

    Temporaries of such an optimizer are unknown to the trace, so they stay as they were.
    """
    return replace(trace, events=tuple(map(_with_8bit, trace.events)))


def _with_8bit(event: MemoryEvent) -> MemoryEvent:
    if event.action != "alloc" or event.category != _STATE or event.bytes < _MIN_8BIT_BYTES:
        return event
    values = event.bytes // 4
    return event._replace(bytes=values + -(-values // _BLOCK) * 4)
