"""Synthetic traces equal the traces of the same networks, event by event."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import sys
from pathlib import Path

import pytest

from cotenant.core.trace import MemoryTrace
from cotenant.estimators.learned.network_features import replays_of
from cotenant.estimators.traced import fake_gpu_of
from cotenant.gpu_specs import gpu_spec
from cotenant.learn.datasets.dataset_row import DatasetRow, Layer
from cotenant.learn.networks.layer_list import build_network
from cotenant.learn.synthetic_traces.mlp_cnn import layer_list_job
from cotenant.learn.synthetic_traces.simulation import replay_input_for
from cotenant.learn.synthetic_traces.synthetic_job import trace_of
from cotenant.learn.synthetic_traces.transformer import EncoderShape, encoder_job
from learn_rows import cnn_row, mlp_row

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@pytest.fixture(autouse=True, scope="module")
def loaded():
    """Loaded once here, not in every forked process."""
    import torch
    import torch._dynamo

    return torch


JOBS = Path(__file__).resolve().parents[2] / "benchmarks" / "estimator" / "jobs"


def traced(script: str, args: str) -> MemoryTrace:
    from cotenant.tracing.process.trace_function import trace_function

    job = functools.partial(_run, str(JOBS / script), args.split())
    return trace_function(job, gpu=fake_gpu_of(gpu_spec("A100-40GB")), steps=3)


def _run(path: str, args: list[str]) -> None:
    import os
    import runpy

    sys.argv = [path, *args]
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - the process ends with it
    runpy.run_path(path, run_name="__main__")
    raise SystemExit(0)


def comparable(trace: MemoryTrace) -> list[tuple[object, ...]]:
    """Allocations, frees and library calls in order, storages by the order they come in; those of no bytes left out."""
    found: list[tuple[object, ...]] = []
    numbers: dict[int, int] = {}
    for event in trace.events:
        if event.action == "op":
            op = trace.ops[event.op_id]
            shapes = [op.params.get(name) for name in ("x", "w", "y", "stride", "padding")]
            found.append((op.kind, op.thread, *shapes))
        elif event.action == "alloc" and event.bytes:
            numbers[event.storage_id] = len(numbers)
            found.append(("alloc", numbers[event.storage_id], event.bytes))
        elif event.action == "free" and event.storage_id in numbers:
            found.append(("free", numbers[event.storage_id]))
    return found


@pytest.mark.parametrize("activation", ["relu", "prelu"])
def test_the_synthetic_trace_of_an_mlp_equals_the_traced_one(activation):
    real = comparable(
        traced(
            "mlp_row.py",
            "--inputs 1000 --hidden 700 600 --classes 100 --batch-norm --dropout 0.2 --batch-size 300 --samples 796 "
            f"--activation {activation}",
        )
    )
    ours = comparable(trace_of(layer_list_job(mlp_row(activation=activation, last_batch=196))))
    # Both end with frees, at another moment.
    assert len(real) > 400
    assert ours[: len(real) - 60] == real[: len(real) - 60]


def test_the_synthetic_trace_of_a_cnn_equals_the_traced_one():
    activation = "prelu"
    layers = "conv3x3:16x32;bn;act;dropout;conv3x3:24x32;bn;act;dropout;gap:24x1;linear:10x1;softmax"
    real = comparable(
        traced("cnn_row.py", f"--layers {layers} --activation {activation} --image-size 32 --batch-size 8 --samples 32")
    )
    ours = comparable(trace_of(layer_list_job(cnn_row(activation=activation))))
    shared = min(len(real), len(ours)) - 60
    assert shared > 400
    assert ours[:shared] == real[:shared]


def branched(group: str) -> DatasetRow:
    """Two blocks of `group`, and a head."""

    def conv(channels: int, before: int, kernel: int, side: int) -> Layer:
        parameters = channels * (before * kernel**2 + 1)
        return Layer(kind="conv", output_shape=(channels, side, side), parameters=parameters, name="conv")

    act = Layer(kind="activation", output_shape=(1, 1, 1), parameters=0)
    norm = Layer(kind="batchnorm", output_shape=(1, 1, 1), parameters=0)
    if group == "residual":
        first = [conv(16, 3, 1, 32), norm, conv(16, 3, 3, 32), norm, act, conv(16, 16, 3, 32), norm, act]
        body = [*first, conv(24, 16, 1, 16), norm, conv(24, 16, 3, 16), norm, act, conv(24, 24, 3, 16), norm, act]
        width = 24
    else:
        body = [conv(8, 3, 3, 32), norm, act, conv(8, 11, 3, 32), norm, act, conv(9, 19, 1, 32), norm, act]
        body += [conv(8, 9, 3, 16), norm, act]
        width = 17
    head = [
        Layer(kind="pool", output_shape=(width, 1, 1), parameters=0),
        Layer(kind="linear", output_shape=(10,), parameters=10 * (width + 1)),
        Layer(kind="softmax", output_shape=(10,), parameters=0),
    ]
    return dataclasses.replace(cnn_row(), layers=(*body, *head), group=group)


def train_from_layers(row: DatasetRow) -> None:
    """Four steps on batches that are all alike, as `trace_of` has them."""
    import torch

    from cotenant.learn.networks.torch_modules import TorchModules

    network = build_network(row.layers, (3, 32, 32), TorchModules(), activation="relu", group=row.group).cuda()
    network(torch.rand(2, 3, 32, 32, device="cuda"))
    optimizer = torch.optim.Adam(network.parameters())
    for _ in range(4):
        images, labels = torch.rand(row.batch, 3, 32, 32).cuda(), torch.zeros(row.batch, dtype=torch.long).cuda()
        optimizer.zero_grad()
        outputs = network(images)
        loss = torch.nn.functional.cross_entropy(outputs, labels)
        loss.backward()
        optimizer.step()
    raise SystemExit(0)


@pytest.mark.parametrize("group", ["residual", "dense"])
def test_the_synthetic_trace_of_a_branched_cnn_is_near_the_traced_one(group):
    from cotenant.tracing.process.trace_function import trace_function

    row = branched(group)
    real = trace_function(functools.partial(train_from_layers, row), gpu=fake_gpu_of(gpu_spec("A100-40GB")), steps=4)
    ours = trace_of(layer_list_job(row))
    real, ours = (replays_of(trace, replay_input_for(trace)) for trace in (real, ours))
    assert ours.allocated_bytes == pytest.approx(real.allocated_bytes, rel=0.05)
    assert ours.reserved_bytes == pytest.approx(real.reserved_bytes, rel=0.1)


def test_the_synthetic_trace_of_a_transformer_equals_the_traced_one():
    real = comparable(
        traced(
            "transformer_row.py",
            "--width 256 --layers 2 --heads 4 --feedforward 1000 --vocabulary 6000 --length 128 --classes 50 "
            "--batch-size 16 --samples 48",
        )
    )
    shape = EncoderShape(vocabulary=6000, width=256, length=128, layers=2, heads=4, feedforward=1000, classes=50)
    ours = comparable(trace_of(encoder_job(shape, 16)))
    # The script then counts its accuracy, which is no part of training.
    first_step = next(place for place, event in enumerate(real) if event[:1] == ("alloc",) and event[2] == 64)
    assert first_step > 600
    assert ours[:first_step] == real[:first_step]


def test_layers_of_a_trace_have_the_features_of_the_configuration():
    from cotenant.estimators.learned.network_features import byte_features, network_of, paper_features

    numpy = pytest.importorskip("numpy")
    assert numpy
    from cotenant.learn.datasets.feature_table import network_of_row

    layers = "conv3x3:16x32;bn;act;dropout;conv3x3:24x32;bn;act;dropout;gap:24x1;linear:10x1;softmax"
    trace = traced("cnn_row.py", f"--layers {layers} --activation prelu --image-size 32 --batch-size 8 --samples 32")
    seen, described = network_of(trace, None), network_of_row(cnn_row(activation="prelu"))
    assert paper_features(seen) == paper_features(described)
    assert byte_features(seen) == byte_features(described)
    assert [layer.positions for layer in seen.layers] == [layer.positions for layer in described.layers]


def test_layers_are_counted_for_one_batch_with_attention_as_one_layer(loaded):
    from cotenant.tracing.process.trace_function import trace_function

    nn = loaded.nn
    block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.Sequential(block, nn.Linear(8, 2))
    state: dict[str, object] = {}

    def step() -> None:
        if not state:
            state["model"] = model.cuda()
            state["optimizer"] = loaded.optim.SGD(model.parameters())
        for _ in range(2):  # two batches to a step
            model(loaded.ones(4, 3, 8, device="cuda")).sum().backward()
        state["optimizer"].step()

    layers = trace_function(step, gpu=fake_gpu_of(gpu_spec("A100-40GB")), steps=2).header.layers
    names = [name for name, _, _ in layers]
    assert names == [
        "MultiheadAttention",
        *("Dropout", "LayerNorm", "Linear", "Dropout", "Linear", "Dropout", "LayerNorm"),
        "Linear",
    ]
    attention = layers[0]
    assert attention[1:] == (4 * 8 * 9, (4, 3, 8))
