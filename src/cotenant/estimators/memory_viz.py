"""A replay in the format of `torch.cuda.memory._snapshot`, which https://pytorch.org/memory_viz draws.

Source of the format: `torch/cuda/memory.py`, `_snapshot`, and its reader `torch/cuda/_memory_viz.py`.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from cotenant.allocator import SegmentInfo
from cotenant.core.trace import MemoryEvent
from cotenant.estimators.allocation_history import AllocationHistory, BlockEvent
from cotenant.estimators.replay_input import SoftwareStack

_STATES = {"live": "active_allocated", "free": "inactive", "pending": "active_pending_free"}


def snapshot_of(history: AllocationHistory, stack: SoftwareStack) -> dict[str, Any]:
    """The snapshot, as plain values. A trace has no times: each event counts as a microsecond.

    In place of a call stack a block has its category, its module and its phase.
    """
    trace = [entry for block in history.blocks for entry in _entries(block, history.events[block.event_index])]
    return {
        "segments": [_segment(segment, history) for segment in history.segments],
        "device_traces": [trace],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": stack.alloc_conf,
            "expandable_segments": stack.options.expandable_segments,
            "max_split_size": -1 if stack.options.max_split_bytes is None else stack.options.max_split_bytes,
            "garbage_collection_threshold": stack.options.garbage_collection_threshold,
            "roundup_power2_divisions": {},
        },
        "external_annotations": [],
    }


def save_snapshot(path: Path, history: AllocationHistory, stack: SoftwareStack) -> None:
    """Write the snapshot as a pickle of plain values."""
    with path.open("wb") as file:
        pickle.dump(snapshot_of(history, stack), file)


def _entries(block: BlockEvent, event: MemoryEvent) -> list[dict[str, Any]]:
    actions = ("free_requested", "free_completed") if block.action == "free" else (block.action,)
    place: dict[str, Any] = {"device_free": 0} if block.action == "oom" else {"addr": block.address}
    return [
        {
            "action": action,
            **place,
            "size": block.size,
            "stream": event.stream,
            "frames": _frames(event),
            "time_us": block.event_index,
        }
        for action in actions
    ]


def _frames(event: MemoryEvent) -> list[dict[str, Any]]:
    names = [event.category or event.action, event.module or "(no module)", event.phase or "(no phase)"]
    kinds = ["category", "module", "phase"]
    return [{"name": name, "filename": kind, "line": 0} for name, kind in zip(names, kinds, strict=True)]


def _segment(segment: SegmentInfo, history: AllocationHistory) -> dict[str, Any]:
    blocks = []
    for block in segment.blocks:
        made = history.addresses.get(block.address) if block.state == "live" else None
        blocks.append(
            {
                "address": block.address,
                "size": block.size_bytes,
                "requested_size": block.requested_bytes,
                "state": _STATES[block.state],
                "frames": [] if made is None else _frames(history.events[made]),
            }
        )
    live = sum(block.size_bytes for block in segment.blocks if block.state == "live")
    active = live + sum(block.size_bytes for block in segment.blocks if block.state == "pending")
    return {
        "device": 0,
        "address": segment.address,
        "total_size": segment.size_bytes,
        "allocated_size": live,
        "active_size": active,
        "requested_size": sum(block.requested_bytes for block in segment.blocks),
        "stream": segment.stream,
        "segment_type": segment.pool,
        "segment_pool_id": (0, 0),
        "is_expandable": segment.is_expandable,
        "frames": [],
        "blocks": blocks,
    }
