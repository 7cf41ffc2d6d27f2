"""Traces are replayed through the allocator: peaks, breakdown, phases, and refused traces."""

from __future__ import annotations

import random

import pytest

from cotenant.allocator import parse_options, peak_reserved_bytes, replay, rules_for
from cotenant.allocator.replay import OomReport, TimelinePoint
from cotenant.core.errors import UsageError
from cotenant.core.trace import MemoryEvent
from cotenant.core.units import MiB

VERSION = "2.13.0"


def alloc(storage_id, mib, category="activation", phase="forward", device=0, stream=0):
    return MemoryEvent("alloc", storage_id, int(mib * MiB), category, phase, "net.layer", stream, device)


def free(storage_id, phase="forward", device=0):
    return MemoryEvent("free", storage_id, 0, "", phase, "", 0, device)


def event(action, phase="forward"):
    return MemoryEvent(action, -1, 0, "", phase, "", 0, 0)


def run(*events, text="", **more):
    return replay(events, options=parse_options(text, VERSION), rules=rules_for(VERSION), **more)


def test_a_trace_without_events_has_a_peak_of_0():
    result = run()
    assert (result.peak_allocated_bytes, result.peak_reserved_bytes, result.peak_event_index) == (0, 0, None)
    assert result.oom is None
    assert result.breakdown_bytes == {}


def test_the_replay_has_peaks_and_final_bytes():
    result = run(alloc(1, 30), alloc(2, 12), free(1), alloc(3, 9), free(2))
    assert result.peak_allocated_bytes == 42 * MiB
    assert result.peak_requested_bytes == 42 * MiB
    assert result.peak_active_bytes == 42 * MiB
    assert result.peak_reserved_bytes == 42 * MiB  # 9 MiB were cut from the 30
    assert (result.allocated_bytes, result.reserved_bytes) == (9 * MiB, 42 * MiB)
    assert result.peak_event_index == 1


def test_breakdown_adds_up_to_the_peak():
    result = run(
        alloc(1, 30, "parameter"),
        alloc(2, 12.5, "activation"),
        alloc(3, 0.0001, "workspace"),
        free(3),
        free(2),
        alloc(4, 2, "gradient"),
    )
    assert result.breakdown_bytes == {"parameter": 30 * MiB, "activation": int(12.5 * MiB), "workspace": 512}
    assert sum(result.breakdown_bytes.values()) == result.peak_allocated_bytes


def test_breakdown_is_of_blocks_not_requests():
    result = run(alloc(1, 20), free(1), alloc(2, 19.5, "gradient"), text="")
    assert result.breakdown_bytes == {"activation": 20 * MiB}
    result = run(alloc(1, 20), free(1), alloc(2, 19.5, "gradient"), alloc(3, 20, "parameter"))
    assert result.breakdown_bytes == {"gradient": 20 * MiB, "parameter": 20 * MiB}


def test_breakdown_at_the_first_of_equal_peaks():
    result = run(alloc(1, 30, "activation"), free(1), alloc(2, 30, "gradient"))
    assert result.breakdown_bytes == {"activation": 30 * MiB}
    assert result.peak_event_index == 0


def test_empty_cache_releases_segments():
    result = run(alloc(1, 30), free(1), event("empty_cache"), alloc(2, 12))
    assert (result.peak_reserved_bytes, result.reserved_bytes) == (30 * MiB, 12 * MiB)


def test_a_storage_of_zero_bytes_reserves_nothing():
    result = run(alloc(1, 0), alloc(2, 0), free(1), free(2))
    assert result.peak_reserved_bytes == 0


def test_streams_have_their_own_segments():
    assert run(alloc(1, 30), free(1), alloc(2, 30, stream=7)).peak_reserved_bytes == 60 * MiB


def test_events_of_other_gpus_are_skipped():
    events = (alloc(1, 30), alloc(2, 50, device=1), free(2, device=1), free(1))
    assert run(*events).peak_reserved_bytes == 30 * MiB
    assert run(*events, device=1).peak_reserved_bytes == 50 * MiB


def test_the_timeline_has_a_point_per_event():
    result = run(alloc(1, 30), event("phase", "backward"), free(1), event("empty_cache"), timeline=True)
    assert result.timeline == (
        TimelinePoint(0, 30 * MiB, 30 * MiB),
        TimelinePoint(2, 0, 30 * MiB),
        TimelinePoint(3, 0, 0),
    )
    assert run(alloc(1, 30)).timeline == ()


def test_out_of_memory_ends_the_replay():
    result = run(alloc(1, 30), alloc(2, 35), alloc(3, 1), capacity_bytes=60 * MiB, total_bytes=64 * MiB)
    assert result.oom == OomReport(
        event_index=1,
        phase="forward",
        module="net.layer",
        request_bytes=35 * MiB,
        tried_bytes=36 * MiB,
        free_bytes=30 * MiB,
        total_bytes=64 * MiB,
        allowed_bytes=None,
        allocated_bytes=30 * MiB,
        reserved_bytes=30 * MiB,
    )
    assert result.peak_allocated_bytes == 30 * MiB
    assert result.breakdown_bytes == {"activation": 30 * MiB}
    assert result.retries == 1


def test_a_retry_is_not_an_error():
    result = run(alloc(1, 30), free(1), alloc(2, 40), capacity_bytes=60 * MiB)
    assert result.oom is None
    assert (result.retries, result.peak_reserved_bytes) == (1, 40 * MiB)


def test_a_memory_fraction_needs_the_size_of_the_gpu():
    with pytest.raises(UsageError, match="which is not known"):
        run(alloc(1, 1), text="per_process_memory_fraction:0.5")
    assert (
        run(alloc(1, 60), text="per_process_memory_fraction:0.5", total_bytes=100 * MiB).oom.allowed_bytes == 50 * MiB
    )


@pytest.mark.parametrize(
    ("events", "message"),
    [
        pytest.param([event("op")], "event 0 is `op`: lower", id="library call"),
        pytest.param([alloc(1, 1), alloc(1, 1)], "event 1 allocates storage 1, which is live", id="twice"),
        pytest.param([free(1)], "event 0 frees storage 1, which is not live", id="never allocated"),
        pytest.param([alloc(1, 1), free(1), free(1)], "event 2 frees storage 1", id="freed twice"),
    ],
)
def test_inconsistent_events_are_refused(events, message):
    with pytest.raises(ValueError, match=message):
        run(*events)


def test_an_optional_storage_is_skipped_without_memory():
    events = [alloc(1, 60), alloc(2, 60, "workspace"), free(2), alloc(3, 30), free(1), free(3)]
    result = run(*events, capacity_bytes=100 * MiB, optional_storages={2})
    assert result.oom is None
    assert result.skipped_storages == 1
    assert result.retries == 1
    assert result.peak_reserved_bytes == 90 * MiB
    assert run(*events, capacity_bytes=100 * MiB).oom is not None


def test_an_optional_storage_is_allocated_where_memory_is_left():
    result = run(alloc(1, 60), alloc(2, 60, "workspace"), free(2), optional_storages={2})
    assert (result.skipped_storages, result.peak_reserved_bytes) == (0, 120 * MiB)


@pytest.mark.parametrize(
    ("version", "descending", "reserved_mib"),
    [
        pytest.param("2.12.0", True, 100, id="the lower address is in the younger segment"),
        pytest.param("2.12.0", False, 160, id="the lower address is in the older segment"),
        pytest.param("2.13.0", True, 160, id="from 2.13 the older segment, whatever the addresses"),
        pytest.param("2.13.0", False, 160, id="from 2.13 the older segment"),
    ],
)
def test_age_or_address_breaks_ties(version, descending, reserved_mib):
    # 40 MiB are free in two segments: of the first, which would be whole again without 2, and of the second.
    events = [alloc(1, 60), alloc(3, 40), free(1), alloc(2, 20), free(3), alloc(5, 40), free(2), alloc(6, 60)]
    found = replay(events, options=parse_options("", version), rules=rules_for(version), descending=descending)
    assert found.peak_reserved_bytes == reserved_mib * MiB


@pytest.mark.parametrize(
    "text", ["", "expandable_segments:True", "max_split_size_mb:32", "throw_on_cudamalloc_oom:True"]
)
@pytest.mark.parametrize("seed", range(5))
def test_the_peak_alone_is_that_of_the_replay(seed, text):
    chance = random.Random(seed)
    live, events = [], []
    for number in range(300):
        if live and chance.random() < 0.45:
            events.append(free(live.pop(chance.randrange(len(live)))))
        live.append(number)
        events.append(alloc(number, chance.choice([0, 0.01, 0.6, 3, 11, 40]), stream=chance.randrange(2)))
        if chance.random() < 0.05:
            events += [event("empty_cache"), event("phase", "backward")]
    settings = {"options": parse_options(text, VERSION), "rules": rules_for(VERSION), "descending": bool(seed % 2)}
    settings |= {"total_bytes": 900 * MiB, "optional_storages": range(100, 120)}
    whole = replay(events, **settings)
    assert peak_reserved_bytes(events, **settings) == whole.peak_reserved_bytes > 0
    assert (whole.oom is None) == (text != "throw_on_cudamalloc_oom:True")
