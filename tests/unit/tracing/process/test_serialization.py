"""Traces are written to files and read back, those of older schemas too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cotenant.core.errors import CotenantError
from cotenant.core.trace import LayerCall, LibraryCall, MemoryEvent, MemoryTrace, NcclUsage, TraceHeader
from cotenant.tracing.process import serialization

GOLDEN = Path(__file__).parents[3] / "golden" / "trace"


def a_trace() -> MemoryTrace:
    return MemoryTrace(
        events=(
            MemoryEvent("alloc", 0, 1024, "parameter", "load", "", 0, 0),
            MemoryEvent("op", -1, 0, "", "forward", "layer.0", 3, 1, 0),
            MemoryEvent("free", 0, 0, "", "backward", "", 0, 0),
        ),
        ops=(LibraryCall(kind="conv_forward", thread="main", params={"x": (1, 2), "dtype": "float32"}),),
        header=TraceHeader(
            torch_version="2.13.0",
            steps=3,
            capability=(8, 0),
            nccl=NcclUsage(group_sizes=(4, 2), buffer_bytes=1 << 20),
            layers=(LayerCall("Linear", 6, (2, 3)), LayerCall("MSELoss", 0, ())),
            sources=(("/home/user/train.py", "ab"), ("/home/user/model.so", None)),
            site_folders=("/opt/env",),
            settings={"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"},
        ),
        warnings=("one",),
        partial=True,
    )


def through_json(trace: MemoryTrace) -> MemoryTrace:
    return serialization.trace_from_dict(json.loads(json.dumps(serialization.trace_to_dict(trace))))


@pytest.mark.parametrize(
    "trace",
    [a_trace(), MemoryTrace(events=(), ops=(), header=TraceHeader(torch_version="2.13.0"))],
    ids=["everything", "empty"],
)
def test_a_trace_is_read_back_as_it_was_written(trace):
    assert through_json(trace) == trace


def test_another_schema_is_refused_with_its_number():
    with pytest.raises(CotenantError, match=r"schema 99, wanted 1 to 2"):
        serialization.trace_from_dict({**serialization.trace_to_dict(a_trace()), "schema": 99})


def test_a_trace_of_schema_1_loads():
    old = json.loads((GOLDEN / "schema_1.json").read_text())
    trace = serialization.trace_from_dict(old)

    assert trace.header == TraceHeader(
        torch_version="2.13.0+cpu",
        torch_folder="/opt/env/lib/python3.11/site-packages/torch",
        python_version="3.11.7",
        gpu="A100",
        capability=(8, 0),
        gpus=2,
        processes=2,
        steps=3,
        nccl=NcclUsage(group_sizes=(2,)),
        memory_fraction=0.5,
        layers=(
            LayerCall("Conv2d", 224, (2, 8, 6, 6)),
            LayerCall("ReLU", 0, (2, 8, 6, 6)),
            LayerCall("Flatten", 0, (2, 288)),
            LayerCall("Linear", 1156, (2, 4)),
        ),
        sources=(("/home/user/train.py", old["header"]["sources"][0][1]),),
        site_folders=("/opt/env/lib/python3.11/site-packages",),
        settings={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"},
        alloc_conf="max_split_size_mb:64",
        cublas_workspace_config="",
    )
    assert [op.kind for op in trace.ops] == ["conv_forward", "gemm_lt", "gemm", "conv_wgrad"]
    actions = [old["texts"][index] for index in old["columns"]["action"]]
    numbers = old["columns"]["storage_id"]
    assert [event.action for event in trace.events] == actions
    for event, number in zip(trace.events, numbers, strict=True):
        assert (event.storage_id, event.op_id) == ((-1, number) if event.action == "op" else (number, -1))
    assert through_json(trace) == trace


def test_save_leaves_nothing_beside_the_file(tmp_path):
    serialization.save(tmp_path / "answer", {"a": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["answer"]
