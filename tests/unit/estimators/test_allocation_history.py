"""The history of a replay: the same peaks, and every segment accounted for."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from cotenant.core.trace import MemoryEvent
from cotenant.core.units import MiB
from cotenant.estimators.allocation_history import allocation_history
from cotenant.estimators.memory_viz import save_snapshot, snapshot_of
from cotenant.estimators.replay_input import make_replay_input, software_stack
from cotenant.gpu_specs import gpu_spec
from traces import a_trace, alloc, free, steps

GPU = gpu_spec("A100-40GB")
EMPTY = MemoryEvent("empty_cache", -1, 0, "", "step", "", 0, 0)


def replay_input(trace, conf=""):
    return make_replay_input(trace, GPU, software_stack(replace(trace.header, alloc_conf=conf)))


def refit():
    pieces = [*(alloc(i, 100) for i in range(4)), *(free(i) for i in range(4))]
    return a_trace([*pieces, alloc(9, 600, "temporary", "step", "head"), free(9, "step"), EMPTY, alloc(11, 50)])


CONFS = pytest.mark.parametrize("conf", ["", "expandable_segments:True", "max_split_size_mb:128"])


@CONFS
@pytest.mark.parametrize("trace", [steps(), refit()], ids=["steps", "refit"])
@pytest.mark.parametrize("capacity_mib", [None, 5000, 700])
def test_peaks_are_those_of_the_replay(conf, trace, capacity_mib):
    where = replay_input(trace, conf)
    capacity = None if capacity_mib is None else capacity_mib * MiB
    history, replayed = allocation_history(where, capacity), where.replay(capacity)
    assert max(history.allocated_bytes) == replayed.peak_allocated_bytes
    assert max(history.reserved_bytes) == replayed.peak_reserved_bytes
    assert (history.blocks[-1].action == "oom") == (replayed.oom is not None)


@CONFS
def test_allocated_minus_freed_is_live(conf):
    history = allocation_history(replay_input(refit(), conf), 700 * MiB)
    came = sum(block.size for block in history.blocks if block.action in {"segment_alloc", "segment_map"})
    went = sum(block.size for block in history.blocks if block.action in {"segment_free", "segment_unmap"})
    assert came > went > 0
    assert came - went == history.reserved_bytes[-1] == sum(segment.size_bytes for segment in history.segments)


def test_a_retry_releases_the_cache_first():
    history = allocation_history(replay_input(refit()), 700 * MiB)
    at = next(i for i, block in enumerate(history.blocks) if block.action == "alloc" and block.size == 600 * MiB)
    assert [block.action for block in history.blocks[at - 5 : at]] == ["segment_free"] * 4 + ["segment_alloc"]


def test_emptying_the_cache_gives_back_there_and_then():
    history = allocation_history(replay_input(a_trace([alloc(0, 30), free(0), EMPTY, alloc(1, 90)])))
    assert [(block.action, block.event_index) for block in history.blocks if block.action.startswith("segment")] == [
        ("segment_alloc", 0),
        ("segment_free", 2),
        ("segment_alloc", 3),
    ]


def test_columns_are_by_category_and_as_long_as_the_events():
    history = allocation_history(replay_input(steps(count=1)))
    assert {len(column) for column in history.category_bytes.values()} == {len(history.events)}
    assert max(history.category_bytes["parameter"]) == 400 * MiB
    assert history.category_bytes["gradient"][-1] == 0


def test_phases_begin_at_their_first_event():
    history = allocation_history(replay_input(steps(count=1)))
    assert [name for _, name in history.phases] == ["load", "forward", "backward", "step"]
    assert [history.events[start].phase for start, _ in history.phases] == ["load", "forward", "backward", "step"]


def test_events_of_other_gpus_are_skipped():
    other = alloc(1, 10)._replace(device=1)
    history = allocation_history(replay_input(a_trace([alloc(0, 20), other])))
    assert len(history.events) == 1
    assert history.reserved_bytes == [20 * MiB]


def test_a_storage_of_0_bytes_is_not_recorded():
    history = allocation_history(replay_input(a_trace([alloc(0, 0), free(0)])))
    assert history.blocks == []


def test_snapshot_has_what_readers_of_torch_expect(tmp_path):
    where = replay_input(a_trace([alloc(0, 30, "parameter", "load", "head"), alloc(1, 5), free(1), alloc(2, 1)]))
    history = allocation_history(where)
    save_snapshot(tmp_path / "s.pickle", history, where.stack)
    snapshot = pickle.loads((tmp_path / "s.pickle").read_bytes())
    assert snapshot == snapshot_of(history, where.stack)
    first = snapshot["segments"][0]  # in order of addresses, which grow
    assert (first["total_size"], first["segment_type"], first["stream"]) == (30 * MiB, "large", 0)
    assert [block["state"] for block in first["blocks"]] == ["active_allocated"]
    assert [frame["name"] for frame in first["blocks"][0]["frames"]] == ["parameter", "head", "load"]
    actions = [device_trace["action"] for device_trace in snapshot["device_traces"][0]]
    assert actions[:2] == ["segment_alloc", "alloc"]
    assert actions.count("free_requested") == actions.count("free_completed") == 1
    assert sum(segment["allocated_size"] for segment in snapshot["segments"]) == 31 * MiB


def test_a_workspace_for_which_there_is_no_memory_is_left_out():
    where = replace(
        replay_input(a_trace([alloc(0, 30), alloc(1, 90), free(1), alloc(2, 20)])), optional_storages=frozenset({1})
    )
    snapshot = snapshot_of(allocation_history(where, 100 * MiB), where.stack)
    assert all(device_trace["action"] != "oom" for device_trace in snapshot["device_traces"][0])
    assert sum(segment["allocated_size"] for segment in snapshot["segments"]) == 50 * MiB


def test_a_snapshot_has_the_out_of_memory_event():
    where = replay_input(a_trace([alloc(0, 30), alloc(1, 90)]))
    snapshot = snapshot_of(allocation_history(where, 100 * MiB), where.stack)
    last = snapshot["device_traces"][0][-1]
    assert (last["action"], last["size"]) == ("oom", 90 * MiB)
