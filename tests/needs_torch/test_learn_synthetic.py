"""Traces that were only described, beside traces of the same networks training on fake tensors."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path

import pytest

from cotenant.core.trace import MemoryTrace
from cotenant.estimators.traced import fake_gpu_of
from cotenant.gpu_specs import gpu_spec
from cotenant.learn.synthetic_traces.mlp_cnn import chain_job
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


JOBS = Path(__file__).resolve().parents[2] / "benchmarks" / "jobs"


def traced(script: str, args: str) -> MemoryTrace:
    from cotenant.tracing.process.trace_function import trace_function

    job = functools.partial(_run, str(JOBS / script), args.split())
    return trace_function(job, card=fake_gpu_of(gpu_spec("A100-40GB")), steps=3)


def _run(path: str, args: list[str]) -> None:
    import os
    import runpy

    sys.argv = [path, *args]
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - the process ends with it
    runpy.run_path(path, run_name="__main__")
    raise SystemExit(0)


def told(trace: MemoryTrace) -> list[tuple[object, ...]]:
    """Allocations, frees and library calls in order, storages by the order they come in; those of no bytes left out."""
    found: list[tuple[object, ...]] = []
    numbers: dict[int, int] = {}
    for event in trace.events:
        if event.action == "op":
            op = trace.ops[event.storage_id]
            shapes = [op.params.get(name) for name in ("x", "w", "y", "stride", "padding")]
            found.append((op.kind, op.thread, *shapes))
        elif event.action == "alloc" and event.bytes:
            numbers[event.storage_id] = len(numbers)
            found.append(("alloc", numbers[event.storage_id], event.bytes))
        elif event.action == "free" and event.storage_id in numbers:
            found.append(("free", numbers[event.storage_id]))
    return found


@pytest.mark.parametrize("activation", ["relu", "prelu"])
def test_mlp_is_traced_as_described(activation):
    real = told(
        traced(
            "mlp_row.py",
            "--inputs 1000 --hidden 700 600 --classes 100 --batch-norm --dropout 0.2 --batch-size 300 --samples 796 "
            f"--activation {activation}",
        )
    )
    ours = told(trace_of(chain_job(mlp_row(activation=activation, last_batch=196))))
    # Both end with frees, at another moment.
    assert len(real) > 400
    assert ours[: len(real) - 60] == real[: len(real) - 60]


def test_cnn_is_traced_as_described():
    activation = "prelu"
    layers = "conv3x3:16x32;bn;act;dropout;conv3x3:24x32;bn;act;dropout;gap:24x1;linear:10x1;softmax"
    real = told(
        traced("cnn_row.py", f"--layers {layers} --activation {activation} --image-size 32 --batch-size 8 --samples 32")
    )
    ours = told(trace_of(chain_job(cnn_row(activation=activation))))
    shared = min(len(real), len(ours)) - 60
    assert shared > 400
    assert ours[:shared] == real[:shared]


def test_encoder_is_traced_as_described():
    real = told(
        traced(
            "transformer_row.py",
            "--width 256 --layers 2 --heads 4 --feedforward 1000 --vocabulary 6000 --length 128 --classes 50 "
            "--batch-size 16 --samples 48",
        )
    )
    shape = EncoderShape(vocabulary=6000, width=256, length=128, layers=2, heads=4, feedforward=1000, classes=50)
    ours = told(trace_of(encoder_job(shape, 16)))
    # The script then counts its accuracy, which is no part of training.
    first_step = next(place for place, event in enumerate(real) if event[:1] == ("alloc",) and event[2] == 64)
    assert first_step > 600
    assert ours[:first_step] == real[:first_step]


def test_layers_of_a_trace_make_the_features_of_the_described_network():
    from cotenant.estimators.learned.network_features import byte_features, network_of, paper_features

    numpy = pytest.importorskip("numpy")
    assert numpy
    from cotenant.learn.datasets.feature_table import network_of_row

    layers = "conv3x3:16x32;bn;act;dropout;conv3x3:24x32;bn;act;dropout;gap:24x1;linear:10x1;softmax"
    trace = traced("cnn_row.py", f"--layers {layers} --activation prelu --image-size 32 --batch-size 8 --samples 32")
    seen, described = network_of(trace, None), network_of_row(cnn_row(activation="prelu"))
    assert paper_features(seen) == paper_features(described)
    assert byte_features(seen) == byte_features(described)
    assert [each.positions for each in seen.layers] == [each.positions for each in described.layers]


def test_layers_are_those_of_one_batch_with_attention_in_one(loaded):
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

    layers = trace_function(step, card=fake_gpu_of(gpu_spec("A100-40GB")), steps=2).header["layers"]
    names = [name for name, _, _ in layers]
    assert names == [
        "MultiheadAttention",
        *("Dropout", "LayerNorm", "Linear", "Dropout", "Linear", "Dropout", "LayerNorm"),
        "Linear",
    ]
    attention = layers[0]
    assert attention[1:] == [4 * 8 * 9, [4, 3, 8]]
