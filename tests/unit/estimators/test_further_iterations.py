"""Iterations behind the traced ones, as far as the allocator reserves more in them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cotenant.core.trace import MemoryEvent
from cotenant.core.units import MiB
from cotenant.estimators import further_iterations
from cotenant.estimators.further_iterations import (
    iteration_before_last,
    repeated_iteration,
    with_further_iterations,
)
from cotenant.estimators.replay_input import make_replay_input, software_stack
from cotenant.estimators.traced import TracedEstimator
from cotenant.estimators.whatif import what_if
from cotenant.gpu_specs import gpu_spec
from traces import a_trace, alloc, call, conv_call, free

GPU = gpu_spec("A100-40GB")


def phase(name):
    return MemoryEvent("phase", -1, 0, "", name, "", 0, 0)


def looped(count, *, batch=8, last=None, leaks=False, once_in=None):
    """`count` iterations: a batch and a result that live into the next one, two gradients, a norm, and a metric.

    The last has a batch of `last`. `leaks`: losses are collected; `once_in`: an iteration that allocates a state.
    """
    events = [phase("load"), alloc(0, 5, "parameter", "load"), alloc(1, 3, "parameter", "load")]
    old = None
    for step in range(count):
        size = last if last is not None and step == count - 1 else batch
        ids = [100 * (step + 1) + number for number in range(10)]
        images, result, saved, loss, first, second, temporary, state, metric, norm = ids
        events += [phase("forward"), alloc(images, size, "input")]
        events += [free(old[0], "forward"), free(old[4], "forward"), free(old[5], "forward")] if old else []
        events += [alloc(saved, 3 * size), call(0), alloc(result, size / 2)]
        events += [free(old[1], "forward")] if old else []
        events += [alloc(temporary, 1), free(temporary, "forward"), alloc(loss, 0.5)]
        events += [free(old[3], "forward")] if old and not leaks else []
        events += [phase("backward"), alloc(second, 3, "gradient", "backward"), free(saved)]
        events += [alloc(first, 5, "gradient", "backward"), phase("step"), alloc(norm, 2, phase="step")]
        events += [free(old[9], "step")] if old else []
        events += [alloc(state, 4, "optimizer state", "step")] if step == once_in else []
        events += [phase("forward"), alloc(metric, 0.25)]
        events += [free(old[8], "forward")] if old else []
        old = ids
    return a_trace(events)


def in_turn(count):
    """As many steps of a critic and a generator each; each leaves its gradients until it trains again."""
    events = [phase("load"), alloc(0, 5, "parameter", "load"), alloc(1, 3, "parameter", "load")]
    for step in range(count):
        for place, module in enumerate(("critic", "generator")):
            number = 100 * (step + 1) + 10 * place
            events += [phase("forward"), alloc(number, 8 - 3 * place, module=module)]
            events += [free(number - 99, "forward")] if step else []
            events += [phase("backward"), alloc(number + 1, 5 - 2 * place, "gradient", "backward"), free(number)]
            events += [phase("step")]
    return a_trace([*events, phase("forward")])


def queued(count, length=3):
    """`count` iterations, each of which puts two results into queues of `length`, which drop the oldest if full."""
    events = [phase("load"), alloc(0, 5, "parameter", "load")]
    for step in range(count):
        number = 100 * (step + 1)
        events += [phase("forward"), alloc(number, 7), alloc(number + 3, 7), alloc(number + 1, 2)]
        events += [free(number - 100 * length, "forward")] if step >= length else []
        events += [phase("backward")]
        events += [free(number + 3 - 100 * length)] if step >= length else []
        events += [alloc(number + 2, 5, "gradient", "backward"), free(number + 1)]
        events += [phase("step"), free(number + 2, "step")]
    return a_trace([*events, phase("forward")])


def history(count):
    """`count` iterations that leave one result for ever, and replace another of its kind."""
    events = [phase("load"), alloc(0, 5, "parameter", "load")]
    for step in range(count):
        number = 100 * (step + 1)
        events += [phase("forward"), alloc(number, 7), alloc(number + 1, 7)]
        events += [free(number - 99, "forward")] if step else []
        events += [phase("backward"), alloc(number + 2, 5, "gradient", "backward")]
        events += [phase("step"), free(number + 2, "step")]
    return a_trace([*events, phase("forward")])


def without_calls(trace):
    return a_trace([event for event in trace.events if event.action != "op"])


def reserved_mib(trace):
    return make_replay_input(trace, GPU, software_stack(trace.header)).peak_reserved_bytes() // MiB


def renumbered(trace):
    """The events with storages numbered in the order of their allocation."""
    numbers: dict[int, int] = {}
    return [
        event._replace(storage_id=numbers.setdefault(event.storage_id, len(numbers)))
        if event.action in ("alloc", "free")
        else event
        for event in trace.events
    ]


@pytest.mark.parametrize("last", [None, 2], ids=["equal batches", "a smaller last batch"])
def test_a_trace_with_repeats_has_the_events_of_a_longer_run(last):
    short, long = looped(3, last=last), looped(7, last=last)
    assert renumbered(repeated_iteration(short.events).insert(short, 4)) == renumbered(long)


def test_optimizers_that_step_in_turn_are_one_iteration():
    found = repeated_iteration(in_turn(3).events)
    assert renumbered(found.insert(in_turn(3), 2)) == renumbered(in_turn(5))


def test_a_trace_may_end_with_a_step():
    assert repeated(a_trace(in_turn(3).events[:-1])) == repeated(in_turn(3))


@pytest.mark.parametrize(("batch", "before", "after"), [(8.25, 70, 96), (1, 44, 46), (10, 104, 104)])
def test_memory_that_a_longer_run_reserves_is_reserved(batch, before, after):
    short, long = (without_calls(looped(count, batch=batch, last=batch / 4)) for count in (3, 12))
    continued = with_further_iterations(short, GPU, software_stack(short.header))
    assert [reserved_mib(trace) for trace in (short, continued, long)] == [before, after, after]
    assert (continued is short) == (before == after)


def growing_job(**header):
    return TracedEstimator().on(a_trace(without_calls(looped(3, batch=1, once_in=0)).events, **header), GPU)


def test_estimates_verdicts_and_what_if_have_them():
    result = growing_job()
    assert result.traced_input.peak_reserved_bytes() == 44 * MiB
    assert result.estimate.peak_reserved_bytes == 46 * MiB
    assert {fit.reserved_bytes for fit in result.fits_on() if fit.gpu == GPU.name} == {46 * MiB}
    smaller = next(saving for saving in what_if(result) if saving.kind == "optimizer")
    assert smaller.peak_reserved_bytes == 46 * MiB


def test_a_null_gpu_counts_the_traced_iterations():
    counted = growing_job().traced_input.peak_reserved_bytes()
    null_gpu = growing_job(backend="null-gpu", counted_reserved_bytes=counted)
    assert not any("own allocator" in warning for warning in null_gpu.estimate.warnings)
    assert null_gpu.estimate.peak_reserved_bytes > counted


def test_library_calls_are_repeated():
    trace = replace(looped(3, batch=1), ops=(conv_call(),))
    continued = with_further_iterations(trace, GPU, software_stack(trace.header))
    calls = [sum(event.action == "op" for event in each.events) for each in (trace, continued)]
    assert calls[1] > calls[0] == 3
    workspaces = make_replay_input(continued, GPU, software_stack(trace.header)).optional_storages
    assert len(workspaces) == calls[1]


def repeated(trace):
    return repeated_iteration(trace.events)


def test_what_was_allocated_once_is_not_repeated():
    found = repeated(looped(3, once_in=1))
    assert not any(event.category == "optimizer state" for event in found.events)
    assert repeated(looped(3, once_in=None)).events == found.events
    assert renumbered(found.insert(looped(3, once_in=1), 1)) == renumbered(looped(4, once_in=1))


def test_nothing_is_repeated_of_iterations_that_leave_more_each_time():
    assert repeated(looped(3, leaks=True)) is None


def test_the_gradient_of_a_smaller_last_batch_is_like_the_one_before_it():
    """Which has a temporary storage more in the same place, such as one that is padded to a larger batch."""
    events = [phase("load"), alloc(0, 5, "parameter", "load")]
    for step in range(3):
        number = 100 * (step + 1)
        events += [phase("forward"), alloc(number, 7)]
        events += [free(number - 98, "forward")] if step else []
        events += [phase("backward")]
        events += [alloc(number + 1, 2, phase="backward"), free(number + 1)] if step < 2 else []
        events += [alloc(number + 2, 5, "gradient", "backward"), free(number), phase("step")]
    found = iteration_before_last(a_trace([*events, phase("forward")]).events)
    assert found.in_next[202] == 302


def test_nothing_is_repeated_while_a_queue_fills():
    assert repeated(queued(3)) is None


def test_nothing_is_repeated_of_a_history_beside_a_result_of_its_kind():
    assert repeated(history(6)) is None


def test_repeats_of_a_full_queue_take_what_a_longer_run_takes():
    short, long = queued(5), queued(9)
    continued = repeated(short).insert(short, 4)
    assert [event._replace(storage_id=0) for event in continued.events] == [
        event._replace(storage_id=0) for event in long.events
    ]
    results = [make_replay_input(one, GPU, software_stack(one.header)).replay() for one in (short, continued, long)]
    assert len({result.peak_allocated_bytes for result in results}) == 1


def test_two_iterations_do_not_show_what_the_next_one_frees():
    assert repeated(looped(2)) is None


@pytest.mark.parametrize("changed", ["module", "phase", "stream", "action"])
def test_nothing_is_repeated_where_the_next_iteration_allocates_elsewhere(changed):
    events = list(looped(3).events)
    place = max(index for index, event in enumerate(events) if event.category == "gradient")
    values = {"module": "head", "phase": "forward", "stream": 1, "action": "op"}
    if changed == "action":
        events.insert(place, call(0, "backward"))
        events.insert(place, call(0, "backward"))
    else:
        events[place] = events[place]._replace(**{changed: values[changed]})
    assert repeated(a_trace(events)) is None


def test_steps_within_a_backward_pass_are_no_iterations():
    events = [phase("load"), alloc(0, 5, "parameter", "load"), phase("forward"), alloc(1, 8)]
    for number in range(10, 14):
        events += [phase("backward"), alloc(number, 5, "gradient", "backward"), phase("step"), free(number, "step")]
    assert repeated(a_trace([*events, phase("backward"), free(1)])) is None


def test_the_iteration_that_requests_most_is_repeated():
    small = looped(4, batch=2)
    first = looped(3)
    numbers = {event.storage_id: event.storage_id + 5000 for event in small.events if event.action == "alloc"}
    second = [event._replace(storage_id=numbers.get(event.storage_id, -1)) for event in small.events]
    for events in ([*first.events, *second], [*second, *first.events]):
        assert max(event.bytes for event in repeated(a_trace(events)).events) == 24 * MiB


def test_of_many_alike_iterations_the_latest_alone_is_compared(monkeypatch):
    compared = []
    compare = further_iterations._as_repeated
    monkeypatch.setattr(further_iterations, "_as_repeated", lambda *given: compared.append(given[3]) or compare(*given))
    trace = looped(30)
    span = repeated(trace)
    assert compared == [span.at]
    assert sum(event.phase == "step" and event.action == "phase" for event in trace.events[span.at :]) == 1
