"""Epochs behind the traced one, as far as the allocator reserves more in them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cotenant.core.trace import MemoryEvent
from cotenant.core.units import MiB
from cotenant.estimators.further_epochs import continue_training, repeated_epoch
from cotenant.estimators.further_iterations import with_further_iterations
from cotenant.estimators.replay_input import make_replay_input, on_device, software_stack
from cotenant.estimators.traced import TracedEstimator
from cotenant.gpu_specs import gpu_spec
from traces import a_trace, alloc, free

GPU = gpu_spec("A100-40GB")
STEPS = 4  # in an epoch: the last one may have a smaller batch


def phase(name):
    return MemoryEvent("phase", -1, 0, "", name, "", 0, 0)


def trained(
    epochs, *, batch=8, last=2, tested=30, turns=1, steps=STEPS, results=1, rebinds=False, warm=False, even=False,
    gathers=0, empty=0, late=False,
):  # fmt: skip
    """Epochs of `steps` iterations and a test of `turns` batches; the results of both live into the next epoch.

    `epochs`: how many; the end of the first one is marked. Of the test: `results` of a batch; `rebinds`: it takes the
    name of the training's batch; `warm`: the first one frees what was loaded before; `even`: all it allocates has one
    size; `gathers`: how often an iteration resizes a storage from nothing and to it, in which it has
    `empty` MiB; the test leaves it whole. `late`: so does each iteration.
    """
    events = [phase("load"), alloc(0, 5, "parameter", "load")]
    shard = 2_000_000
    events += [alloc(shard, empty, "parameter", "load")] if gathers else []
    is_whole = False
    events += [alloc(1, 7, phase="load")] if warm else []
    trained_before: tuple[int, ...] = ()
    tested_before: list[int] = []
    at = None
    for epoch in range(epochs):
        for step in range(steps):
            size = last if step == steps - 1 else batch
            images, saved, loss, gradient = (10_000 * epoch + 10 * (step + 1) + number for number in range(4))
            taken = rebinds and epoch and not step
            events += [
                phase("forward"),
                alloc(images, size, "input"),
                *map(free, trained_before[:1] if not taken else ()),
            ]
            for turn in range(gathers):
                if is_whole and late:
                    events += [free(shard, "forward"), alloc(shard + 1, empty, "parameter")]
                    shard, is_whole = shard + 1, False
                if not is_whole:
                    events += [free(shard, "forward"), alloc(shard + 1, 9, "parameter")]
                    shard += 1
                events += [alloc(images + 7000 + turn, 1), free(images + 7000 + turn, "forward")]
                is_whole = True
                if not late:
                    events += [free(shard, "forward"), alloc(shard + 1, empty, "parameter")]
                    shard, is_whole = shard + 1, False
            events += [alloc(saved, 3 * size), alloc(loss, 0.5), *map(free, trained_before[1:2])]
            events += [phase("backward"), alloc(gradient, 5, "gradient", "backward"), *map(free, trained_before[2:])]
            events += [free(saved), phase("step")]
            trained_before = images, loss, gradient
        events += [phase("forward")]
        if gathers:
            if is_whole:
                events += [free(shard, "forward"), alloc(shard + 1, empty, "parameter")]
                shard += 1
            events += [free(shard, "forward"), alloc(shard + 1, 9, "parameter")]
            shard, is_whole = shard + 1, True
        for turn in range(turns):
            number = 10_000 * epoch + 5000 + 10 * turn
            events += [alloc(number, tested / 10 if even else tested, module="net")]
            events += [free(trained_before[0]), alloc(number + 9, 1), free(number + 9)] if rebinds and not turn else []
            events += [free(1)] if warm and not epoch and not turn else []
            for result in range(number + 1, number + 1 + results):
                events += [alloc(result, tested / 10, module="net.head")]
                if tested_before:
                    events += [free(tested_before.pop(0), "forward")]
            tested_before = list(range(number + 1, number + 1 + results))
            events += [free(number, "forward")]
        at = len(events) if at is None else at
    return a_trace(events, epoch_end=at)


def reserved_mib(trace):
    return make_replay_input(trace, GPU, software_stack(trace.header)).peak_reserved_bytes() // MiB


def renumbered(events):
    """The events with storages numbered in the order of their allocation."""
    numbers: dict[int, int] = {}
    return [
        event._replace(storage_id=numbers.setdefault(event.storage_id, len(numbers)))
        if event.action in ("alloc", "free")
        else event
        for event in events
    ]


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"turns": 3},
        {"results": 2},
        {"rebinds": True},
        {"warm": True},
        {"even": True},
        {"gathers": 1},
        {"gathers": 2},
    ],
    ids=[
        "one batch of the test",
        "a test in a loop",
        "two results",
        "a name for both",
        "warmed up",
        "equal sizes",
        "gathered parameters",
        "parameters gathered twice",
    ],
)
def test_a_trace_with_repeats_has_the_events_of_a_longer_run(kind):
    short, long = trained(1, **kind), trained(4, **kind)
    assert renumbered(repeated_epoch(short).insert(short, 3).events) == renumbered(long.events)


@pytest.mark.parametrize(
    ("kind", "gathered"),
    [
        pytest.param({}, STEPS, id="still whole in the first iteration"),
        pytest.param({"empty": 1}, STEPS + 1, id="another storage each time"),
        pytest.param({"late": True}, STEPS + 1, id="whole until the next iteration"),
    ],
)
def test_an_epoch_gathers_what_the_one_before_it_did_not_leave_whole(kind, gathered):
    short = trained(1, gathers=1, **kind)
    events = repeated_epoch(short).insert(short, 1).events[len(short.events) :]
    assert sum(event.action == "alloc" and event.bytes == 9 * MiB for event in events) == gathered


def test_an_epoch_has_more_iterations_than_were_traced():
    short, long = trained(1, steps=3), trained(2)
    again = repeated_epoch(short).events
    assert renumbered(again) == renumbered(repeated_epoch(trained(1)).events)
    assert len(short.events) + len(again) < len(long.events)


def test_what_follows_the_epochs_frees_what_the_last_one_left():
    short = trained(1)
    left = repeated_epoch(short).carried
    trace = replace(short, events=(*short.events, *map(free, left)))
    events = repeated_epoch(trace).insert(trace, 2).events
    live = {event.storage_id for event in events if event.action == "alloc"}
    live -= {event.storage_id for event in events if event.action == "free"}
    assert live == {0}
    assert len(events) == len({(event.action, event.storage_id) for event in events if event.storage_id >= 0}) + sum(
        event.action == "phase" for event in events
    )


@pytest.mark.parametrize(("batch", "before", "after"), [(8, 70, 94), (10, 82, 82)])
def test_memory_that_later_epochs_reserve_is_reserved(batch, before, after):
    short, long = (trained(epochs, batch=batch, tested=20) for epochs in (1, 8))
    continued = continue_training(short, GPU, software_stack(short.header))
    assert [reserved_mib(trace) for trace in (short, continued, long)] == [before, after, after]
    assert (continued is short) == (before == after)


def test_estimates_have_it_on_each_gpu():
    trace = trained(1, tested=20)
    estimator = TracedEstimator()
    assert estimator.on(trace, GPU).estimate.peak_reserved_bytes == 94 * MiB
    events = [one for event in trace.events for one in _on_both(event)]
    both = replace(trace, events=tuple(events), header=replace(trace.header, gpus=2, epoch_end=len(events)))
    assert [gpu.peak_reserved_bytes for gpu in estimator.on(both, GPU).estimate.per_gpu] == [94 * MiB, 94 * MiB]


def _on_both(event):
    if event.action == "phase":
        return [event]
    return [event, event._replace(device=1, storage_id=event.storage_id + 1_000_000)]


def test_the_end_of_an_epoch_is_found_among_the_events_of_a_gpu():
    trace = trained(1)
    at = trace.header.epoch_end
    extra = [event._replace(device=1) for event in (alloc(77_000, 1), free(77_000))]
    longer = replace(trace, events=(*trace.events[:5], *extra, *trace.events[5:], *extra))
    longer = replace(longer, header=replace(trace.header, epoch_end=at + 2))
    assert on_device(longer, 0).header.epoch_end == at
    assert on_device(longer, 1).header.epoch_end == 2 + sum(event.action == "phase" for event in trace.events)


@pytest.mark.parametrize(
    "trace",
    [
        a_trace(trained(1).events),
        a_trace(trained(1).events, epoch_end=trained(1).header.epoch_end - 4),
        trained(1, steps=2),
        a_trace([alloc(0, 1)], epoch_end=1),
    ],
    ids=["the end is not known", "nothing behind the iterations", "two iterations", "no iteration"],
)
def test_nothing_is_repeated(trace):
    assert repeated_epoch(trace) is None


def test_iterations_are_repeated_first():
    trace = trained(1, batch=11, last=1, tested=5, steps=3)
    stack = software_stack(trace.header)
    longer = with_further_iterations(trace, GPU, stack)
    continued = continue_training(trace, GPU, stack)
    assert [reserved_mib(one) for one in (trace, longer, continued)] == [76, 110, 112]
    assert continued.events[: len(longer.events)] == longer.events
    assert continued.header.epoch_end == len(continued.events)


def test_a_result_of_another_size_is_freed_where_its_like_is_made():
    trace = trained(1)
    smaller = [alloc(7000, 0.5, module="net.head"), free(trace.events[-2].storage_id, "forward")]
    events = repeated_epoch(a_trace([*trace.events[:-1], *smaller], epoch_end=len(trace.events) + 1)).events
    actions = [(event.action, event.bytes) for event in events if event.module == "net.head" or event.storage_id < -1]
    assert actions[-3:] == [("alloc", 3 * MiB), ("alloc", MiB // 2), ("free", 0)]
