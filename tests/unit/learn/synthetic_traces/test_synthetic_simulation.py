"""Synthetic traces are replayed through the allocator and compared with measured peaks."""

from __future__ import annotations

import dataclasses
import statistics

import pytest

from cotenant.core.errors import UsageError
from cotenant.core.units import GiB, MiB
from cotenant.learn.datasets.dataset_row import Layer
from cotenant.learn.datasets.published import ENCODER_COLUMNS, is_plain, read_published
from cotenant.learn.synthetic_traces.backward_steps import InputGradient, PassGradient, WeightGradient
from cotenant.learn.synthetic_traces.simulation import reserved_within, simulate, synthetic_trace
from cotenant.learn.synthetic_traces.tape import Parameter, Tape
from cotenant.learn.synthetic_traces.transformer import EncoderShape
from learn_rows import cnn_row, mlp_row
from shared_data import SHARED_DATA

SETS = SHARED_DATA / "gpumemnet"


def reserved(row) -> int:
    return simulate(row).replays.reserved_bytes


def test_every_free_of_a_synthetic_trace_names_a_live_storage():
    live: set[int] = set()
    for event in synthetic_trace(cnn_row(activation="prelu")).events:
        if event.action == "alloc":
            assert event.storage_id not in live
            live.add(event.storage_id)
        elif event.action == "free":
            live.remove(event.storage_id)


def test_a_gradient_that_comes_twice_is_added_in_place():
    tape = Tape()
    weight = Parameter(512)
    x = tape.record(tape.allocate(512), [tape.allocate(4)], [WeightGradient(weight)])
    twice = tape.record(tape.allocate(512), [x, x], [PassGradient(0), InputGradient(1, 512)])
    before = len(tape.events)
    tape.backward(twice)
    made = [event.bytes for event in tape.events[before:] if event.action == "alloc"]
    assert made == [4, 512, 512]
    assert weight.grad is not None


def test_the_last_batch_of_an_epoch_is_the_remainder():
    def inputs(row):
        events = synthetic_trace(row).events
        sizes = [event.bytes for event in events if event.action == "alloc" and event.category == "input"]
        return [size // 4000 for size in sizes if size % 4000 == 0]

    assert inputs(mlp_row(batch=300, last_batch=196)) == [2, 300, 300, 196, 300]
    assert inputs(mlp_row(batch=256, last_batch=0)) == [2, 256, 256, 256, 256]


def test_convolutions_have_workspaces_in_a_simulation():
    replays = simulate(cnn_row((64, 64), side=64, batch=32)).replays
    assert replays.reserved_bytes > replays.bare_reserved_bytes > replays.bare_allocated_bytes


def test_a_job_runs_out_of_memory_on_a_gpu_that_others_fill():
    row = mlp_row((4000, 4000, 10))
    need = reserved(row)
    assert reserved_within(row, 0) == need
    assert reserved_within(row, 40 * GiB - need // 2) is None


@pytest.mark.parametrize("group", ["residual", "dense"])
def test_branches_hold_more_than_a_chain(group):
    def conv(out: int, before: int, kernel: int = 3) -> Layer:
        return Layer(kind="conv", output_shape=(out, 32, 32), parameters=out * (before * kernel**2 + 1), name="conv")

    act = Layer(kind="activation", output_shape=(32, 32, 32), parameters=0)
    ends = [Layer(kind="pool", output_shape=(32, 1, 1), parameters=0)]
    chain = [conv(32, 3), act, conv(32, 32), act]
    branched = [conv(32, 3, 1), *chain] if group == "residual" else [conv(32, 3), act, conv(32, 35), act]
    row = dataclasses.replace(cnn_row((32, 32), batch=512), layers=(*chain, *ends))
    other = dataclasses.replace(row, layers=(*branched, *ends), group=group)
    assert simulate(other).replays.bare_allocated_bytes > simulate(row).replays.bare_allocated_bytes


def test_a_layer_that_is_not_modeled_is_named():
    row = dataclasses.replace(mlp_row(), layers=(Layer(kind="rnn", output_shape=(5,), parameters=1, name="LSTM"),))
    with pytest.raises(UsageError, match="layer 0 is `LSTM`, which cannot be simulated"):
        simulate(row)


@pytest.mark.parametrize(
    ("name", "every", "outside_mib", "median", "most"),
    [
        pytest.param("mlp.csv", 300, 1429, 0.0002, 0.02, id="mlp"),
        pytest.param("cnn_step1.csv", 40, 1719, 0.02, 0.45, id="cnn"),
        pytest.param("transformer_sample.csv", 12, 1493, 0.01, 0.25, id="transformer"),
    ],
)
def test_simulations_are_near_the_measured_peaks(name, every, outside_mib, median, most):
    if not (SETS / name).is_file():
        pytest.skip("the published sets are not here")
    trained = [row for row in read_published(SETS / name) if row.status == "ok" and is_plain(row)]
    rows = [row for row in trained if row.extras.get("flag") != "near_capacity"][::every]
    errors = [abs(reserved(row) + outside_mib * MiB - row.peak_bytes) / row.peak_bytes for row in rows]
    assert len(errors) >= 8
    assert statistics.median(errors) <= median
    assert max(errors) <= most


def test_columns_of_published_encoders_name_every_size_of_a_synthetic_one():
    assert set(ENCODER_COLUMNS) == {field.name for field in dataclasses.fields(EncoderShape)}
