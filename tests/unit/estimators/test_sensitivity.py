"""How far small changes move the reserved bytes."""

from __future__ import annotations

import random

import pytest

from cotenant.core.trace import LibraryCall
from cotenant.core.units import MiB
from cotenant.estimators import sensitivity as module
from cotenant.estimators.replay_input import conv_of, make_replay_input, software_stack
from cotenant.estimators.sensitivity import reserved_range_of, states_of
from cotenant.gpu_specs import gpu_spec
from traces import a_trace, alloc, call, free, steps

GPU = gpu_spec("A100-40GB")


def conv_wgrad():
    """One that no table knows, summed in one part."""
    params = {"x": (200, 256, 8, 8), "w": (1536, 256, 3, 3), "y": (200, 1536, 8, 8), "padding": (9, 9)}
    params |= {"stride": (1, 1), "dilation": (1, 1), "groups": 1, "dtype": "float32", "channels_last": False}
    return LibraryCall(kind="conv_wgrad", thread="autograd", params=params)


def changed(trace, seed):
    stack = software_stack(trace.header)
    return module._changed(trace, GPU, stack, seed, module._rules_of(GPU, stack))


def interval(trace):
    stack = software_stack(trace.header)
    reserved = make_replay_input(trace, GPU, stack).replay().peak_reserved_bytes
    return reserved, reserved_range_of(trace, GPU, stack, reserved)


@pytest.mark.parametrize(
    ("mib", "states"),
    [
        pytest.param([1000], [(1000, 1000)], id="one value"),
        pytest.param([1000, 1000, 1010], [(1000, 1010)], id="close together"),
        pytest.param([1000, 1010, 1500, 1520], [(1000, 1010), (1500, 1520)], id="two groups"),
        pytest.param([100, 130], [(100, 130)], id="apart by little, for a small job"),
        pytest.param([10000, 10300], [(10000, 10300)], id="apart by little, for a large job"),
        pytest.param([1000, 1100, 1200, 1300], [(1000, 1300)], id="spread evenly"),
    ],
)
def test_distant_values_are_two_states(mib, states):
    assert states_of([value * MiB for value in mib]) == tuple((low * MiB, high * MiB) for low, high in states)


def test_the_range_contains_the_unchanged_replay():
    reserved, found = interval(steps())
    assert found.low_bytes <= reserved <= found.high_bytes
    assert (found.states[0][0], found.states[-1][1]) == (found.low_bytes, found.high_bytes)


def test_the_range_is_deterministic():
    assert interval(steps()) == interval(steps())


def test_stray_blocks_take_memory():
    # Nothing is ever free in here, so wherever the stray block appears it needs a segment.
    reserved, found = interval(a_trace([alloc(i, 50) for i in range(40)]))
    assert reserved == 2000 * MiB
    assert found.high_bytes - reserved == 20 * MiB


def test_strays_are_of_two_to_eight_mib_on_the_first_stream():
    events = tuple(event._replace(stream=3, device=1) for event in (alloc(0, 1), free(0)))
    strays = [
        event
        for seed in range(40)
        for event in module._with_stray(events, random.Random(seed), stays=True)
        if event not in events
    ]
    assert {(stray.stream, stray.device) for stray in strays} == {(0, 0)}
    assert 2 * MiB <= min(stray.bytes for stray in strays) < 4 * MiB
    assert 6 * MiB < max(stray.bytes for stray in strays) <= 8 * MiB


def test_a_trace_without_events_has_a_range():
    assert interval(a_trace([]))[1].high_bytes == 0


def test_a_tenth_of_the_storages_are_freed_late():
    events = [event for i in range(1000) for event in (alloc(i, 1), free(i))]
    late_frees = module._with_late_frees(tuple(events), random.Random(0))
    at = {event: place for place, event in enumerate(late_frees)}
    late = [i for i in range(999) if at[events[2 * i + 1]] > at[events[2 * i + 2]]]
    assert 60 < len(late) < 140


def test_a_late_free_overlaps_the_next_storage():
    # Every block is reused at once; one that dies late makes the next storage take new memory.
    events = [event for i in range(100) for event in (alloc(i, 64), free(i, "forward"))]
    reserved, found = interval(a_trace(events))
    assert reserved == 64 * MiB
    assert found.high_bytes >= 128 * MiB


def test_a_convolution_may_take_no_workspace():
    ops = [LibraryCall(kind="conv_forward", thread="main", params={"number": i}) for i in range(20)]
    trace = a_trace([call(i) for i in range(20)], ops)
    gaps = module._with_gaps(trace, lambda op: 7, random.Random(1))
    assert 0 < sum(gaps(op) == 0 for op in ops) < 10


def test_every_fourth_replay_shares_the_cublas_handle():
    ops = [LibraryCall(kind="gemm", thread="main"), LibraryCall(kind="gemm", thread="autograd")]
    trace = a_trace([call(0), alloc(0, 11), call(1)], ops)
    replay_inputs = [changed(trace, seed) for seed in range(4)]
    handles = [sum(event.bytes == GPU.cublas_workspace_bytes for event in made.events) for made in replay_inputs]
    assert handles == [2, 2, 2, 1]


def test_half_of_the_replays_use_the_second_guess():
    ops = [conv_wgrad() for _ in range(8)]
    trace = a_trace([call(i) for i in range(8)], ops)
    usual, other = (conv_of(GPU, second_guess=guess)(ops[0]) for guess in (False, True))
    assert usual != other
    replay_inputs = [changed(trace, seed) for seed in range(4)]
    taken = [{event.bytes for event in replay_input.events} & {usual, other} for replay_input in replay_inputs]
    assert taken == [{usual}, {other}, {other}, {usual}]


def test_one_more_replay_splits_the_calls_that_are_suspected():
    params = {**conv_wgrad().params, "x": (2, 256, 8, 8), "y": (2, 1536, 8, 8)}  # too few pixels for the rule
    few = LibraryCall(kind="conv_wgrad", thread="autograd", params=params)
    reserved, found = interval(a_trace([call(0), call(1)], [few, conv_wgrad()], torch_version="2.10.0"))
    split = conv_of(GPU).split_bytes(few)
    assert conv_of(GPU)(few) == 0
    assert split is not None
    # The other call needs more than that, so it reserves a segment of its own, as it does without.
    assert found.split_bytes == pytest.approx(split, abs=2 * MiB)
    assert found.high_bytes < reserved + found.split_bytes


def test_without_suspected_calls_no_split_replay_runs():
    assert interval(steps())[1].split_bytes == 0
    assert interval(a_trace([call(0)], [conv_wgrad()]))[1].split_bytes == 0


def test_a_split_that_finds_room_adds_nothing():
    params = {**conv_wgrad().params, "x": (2, 256, 8, 8), "y": (2, 1536, 8, 8)}
    few = LibraryCall(kind="conv_wgrad", thread="autograd", params=params)
    assert interval(a_trace([alloc(0, 1000), free(0), call(0)], [few]))[1].split_bytes == 0


def test_every_other_replay_has_ascending_addresses():
    trace = a_trace([alloc(0, 1)])
    replay_inputs = [changed(trace, seed) for seed in range(4)]
    assert [replay_input.descending for replay_input in replay_inputs] == [True, False, True, False]


def test_strays_and_late_frees_alternate():
    trace = a_trace([event for i in range(100) for event in (alloc(i, 1), free(i))])
    for seed, added in enumerate(["alloc", None, "alloc and free", None]):
        events = changed(trace, seed).events
        assert len(events) - len(trace.events) == {"alloc": 1, "alloc and free": 2, None: 0}[added]
        assert (set(events) == set(trace.events)) == (added is None)
        assert events != trace.events


def test_the_unchanged_replay_counts():
    trace = steps()
    stack = software_stack(trace.header)
    assert reserved_range_of(trace, GPU, stack, 1).low_bytes == 1


def test_long_traces_are_replayed_less_often():
    events = [event for i in range(20_000) for event in (alloc(i, 1), free(i))]
    assert interval(a_trace(events))[1].replays == 3
    assert interval(a_trace(events[:10]))[1].replays == 8


def test_late_frees_come_before_the_event_at_their_new_place():
    events = tuple(free(number) for number in range(200))
    moved = module._with_late_frees(events, random.Random(3))
    chance, placed = random.Random(3), []
    for at in range(len(events)):
        late = chance.random() < 0.1
        placed.append((at + chance.randint(1, 3) if late else at, at))
    assert [event.storage_id for event in moved] == [at for _, at in sorted(placed)]
    assert moved != events


def test_a_rule_is_asked_once_for_each_call(monkeypatch):
    asked = []
    monkeypatch.setattr(module, "conv_of", lambda *args, **kwargs: lambda op: asked.append(op) or 7)
    rules = module._rules_of(GPU, software_stack(steps().header))
    first, other = conv_wgrad(), conv_wgrad()
    assert [rules[0](op) for op in (first, other, first, other)] == [7] * 4
    assert rules[1](first) == 7
    assert list(map(id, asked)) == list(map(id, (first, other, first)))
