"""Library calls become allocations."""

from __future__ import annotations

import pytest

from cotenant.core.trace import LibraryCall, MemoryEvent, MemoryTrace, TraceHeader
from cotenant.estimators import lowering
from cotenant.estimators.lowering import BlasWorkspaces, blas_workspaces


def event(action, number=-1, nbytes=0, stream=0):
    if action == "op":
        return MemoryEvent(action, -1, 0, "", "forward", "", stream, 0, number)
    return MemoryEvent(action, number, nbytes, "", "forward", "", stream, 0)


def lower(trace, *, blas, conv=lambda op: 0, reduction=lambda op: (), optional_storages=None, **trials):
    return lowering.lower(
        trace,
        blas=blas,
        conv=conv,
        reduction=reduction,
        attention=lambda op: (7, 8),
        optional_storages=optional_storages,
        **trials,
    )


def lowered(events, ops, *, lt_bytes=0, per_call=False, holds_lt=False, **rules):
    trace = MemoryTrace(events=tuple(events), ops=tuple(ops), header=TraceHeader(torch_version="2.13.0"))
    blas = BlasWorkspaces(handle_bytes=100, lt_bytes=lt_bytes, per_call=per_call, holds_lt=holds_lt)
    return [(lowered_event.action, lowered_event.bytes) for lowered_event in lower(trace, blas=blas, **rules)]


MAIN, AUTOGRAD = LibraryCall(kind="gemm", thread="main"), LibraryCall(kind="gemm", thread="autograd")
LT = LibraryCall(kind="gemm_lt", thread="main")
CONV = LibraryCall(kind="conv_forward", thread="main")
REDUCTION = LibraryCall(kind="reduction", thread="autograd")


def test_a_cublas_handle_holds_its_workspace():
    assert lowered([event("op", 0)] * 3, [MAIN]) == [("alloc", 100)]


def test_each_thread_and_each_stream_has_a_handle():
    events = [event("op", 0), event("op", 1), event("op", 0, stream=7)]
    assert lowered(events, [MAIN, AUTOGRAD]) == [("alloc", 100)] * 3


def test_captures_of_cuda_graphs_share_a_handle_whatever_their_pool():
    events = [event("op", 0), event("op", 0, stream=-1), event("op", 0, stream=-2)]
    assert lowered(events, [MAIN]) == [("alloc", 100)] * 2


def test_a_capture_on_a_stream_that_multiplied_before_has_its_workspace():
    captured = LibraryCall(kind="gemm", thread="main", params={"capture_stream": 3})
    events = [event("op", 0, stream=3), event("op", 1, stream=-1), event("op", 1, stream=-2)]
    assert lowered(events, [MAIN, captured]) == [("alloc", 100)]
    assert lowered(events[1:], [MAIN, captured]) == [("alloc", 100)]


def test_from_2_15_on_each_call_takes_its_workspace():
    events = [event("op", 0), event("op", 1), event("op", 0, stream=-1)]
    own, lt = [("alloc", 100), ("free", 0)], [("alloc", 7), ("free", 0)]
    assert lowered(events, [MAIN, LT], lt_bytes=7, per_call=True) == [*own, *lt, *own]


def test_lt_shares_the_workspace_of_its_handle():
    assert lowered([event("op", 1), event("op", 0)], [MAIN, LT]) == [("alloc", 100)]


def test_an_older_lt_takes_its_own_for_the_call_before_its_handle_has_one():
    found = lowered([event("op", 0)] * 2, [LT], lt_bytes=7)
    assert found == [("alloc", 7), ("alloc", 100), ("free", 0), ("alloc", 7), ("free", 0)]


def test_lt_of_2_9_to_2_11_holds_its_own_for_each_handle():
    calls = [event("op", 1), event("op", 1), event("op", 1, stream=7), event("op", 0, stream=9)]
    found = lowered(calls, [MAIN, LT], lt_bytes=7, holds_lt=True)
    assert found == [("alloc", 100), ("alloc", 7), ("alloc", 100), ("alloc", 7), ("alloc", 100)]


def test_plans_are_measured_once_in_what_is_left_and_the_cache_is_emptied():
    events = [event("alloc", 0, 40), event("alloc", 1, 50), event("free", 1), event("op", 0), event("op", 0)]
    queries, optional_storages = [], set()

    def trial(call, free_bytes):
        queries.append(free_bytes)
        return 7

    found = lowered(events, [CONV], conv=lambda op: 5, trial=trial, free_bytes=100, optional_storages=optional_storages)
    once = [("alloc", 5), ("free", 0)]
    assert found[3:] == [("alloc", 7), ("free", 0), ("empty_cache", 0), *once, *once]
    assert queries == [60]
    assert optional_storages == {2, 3, 4}


@pytest.mark.parametrize(("tried", "events"), [(None, []), (0, [("empty_cache", 0)])])
def test_without_a_plan_that_fits_the_cache_is_emptied_all_the_same(tried, events):
    found = lowered([event("op", 0)], [CONV], trial=lambda call, free_bytes: tried, free_bytes=100)
    assert found == events


def test_a_convolution_takes_its_workspace_for_the_call():
    assert lowered([event("op", 0)], [CONV], conv=lambda op: 9) == [("alloc", 9), ("free", 0)]


def test_a_reduction_takes_its_buffers_together():
    found = lowered([event("op", 0)] * 2, [REDUCTION], reduction=lambda op: (90, 4))
    assert found == [("alloc", 90), ("alloc", 4), ("free", 0), ("free", 0)] * 2


def test_flash_attention_takes_the_accumulators_of_its_splits():
    call = LibraryCall(kind="flash_attention", thread="main", params={"query": (1, 1, 1, 1), "keys": 1})
    assert lowered([event("op", 0)], [call]) == [("alloc", 7), ("alloc", 8), ("free", 0), ("free", 0)]


def test_the_buffer_of_a_reduction_is_not_optional():
    optional_storages: set[int] = set()
    trace = MemoryTrace(events=(event("op", 0),), ops=(REDUCTION,), header=TraceHeader(torch_version="2.13.0"))
    blas = BlasWorkspaces(handle_bytes=100, lt_bytes=0)
    assert [
        taken.bytes for taken in lower(trace, blas=blas, reduction=lambda op: (9,), optional_storages=optional_storages)
    ] == [9, 0]
    assert optional_storages == set()


def test_only_the_workspace_of_a_convolution_is_optional():
    optional_storages: set[int] = set()
    trace = MemoryTrace(
        events=tuple(event("op", i) for i in (0, 1, 2)),
        ops=(MAIN, CONV, LT),
        header=TraceHeader(torch_version="2.13.0"),
    )
    blas = BlasWorkspaces(handle_bytes=100, lt_bytes=7)
    found = list(lower(trace, blas=blas, conv=lambda op: 9, optional_storages=optional_storages))
    assert {event.storage_id for event in found if event.action == "alloc" and event.bytes == 9} == optional_storages


def test_calls_without_a_workspace_have_no_optional_storage():
    optional_storages: set[int] = set()
    trace = MemoryTrace(
        events=(event("op", 1), event("op", 0)), ops=(MAIN, CONV), header=TraceHeader(torch_version="2.13.0")
    )
    list(
        lower(
            trace,
            blas=BlasWorkspaces(handle_bytes=100, lt_bytes=0),
            conv=lambda op: 0,
            optional_storages=optional_storages,
        )
    )
    assert optional_storages == set()


def test_new_storage_ids_differ_from_those_of_the_trace():
    trace = MemoryTrace(
        events=(event("alloc", 5, 1), event("op", 0)), ops=(MAIN,), header=TraceHeader(torch_version="2.13.0")
    )
    found = list(lower(trace, blas=BlasWorkspaces(handle_bytes=1, lt_bytes=0), conv=lambda op: 0))
    assert len({event.storage_id for event in found}) == 2


@pytest.mark.parametrize(
    ("version", "config", "handle", "lt", "holds_lt"),
    [
        pytest.param("2.4.1", "", 8519680, 2**20, False, id="own for a call"),
        pytest.param("2.8.0+cu128", "", 8519680, 2**20, False, id="so to 2.8"),
        pytest.param("2.9.1", "", 8519680, 2**20, True, id="own and held from 2.9 on"),
        pytest.param("2.11.0", "", 8519680, 2**20, True, id="so to 2.11"),
        pytest.param("2.12.0", "", 8519680, 0, False, id="shared from 2.12 on"),
        pytest.param("2.13.0", ":4096:8", 4096 * 8 * 1024, 0, False, id="set by the environment"),
        pytest.param("2.13.0", ":0:0", 0, 0, False, id="none at all"),
        pytest.param("2.14.1", "", 8519680, 0, False, id="shared up to 2.14"),
        pytest.param("2.15.0+cu132", "", 8519680, 2**20, False, id="of the call from 2.15 on"),
    ],
)
def test_blas_workspaces_depend_on_the_version_and_the_setting(version, config, handle, lt, holds_lt):
    found = blas_workspaces(8519680, version, config)
    assert (found.handle_bytes, found.lt_bytes, found.holds_lt) == (handle, lt, holds_lt)
    assert found.per_call is version.startswith("2.15")


def test_a_setting_of_2_15_caches_workspaces_as_before():
    assert blas_workspaces(8519680, "2.15.0", "", cached=True) == BlasWorkspaces(handle_bytes=8519680, lt_bytes=0)
