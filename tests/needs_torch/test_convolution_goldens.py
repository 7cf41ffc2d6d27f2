"""Tracing convolutions on a CPU build gives the allocations that PyTorch's CUDA build makes on a null GPU.

cuDNN's answers come from the golden file, as if the job's environment had that cuDNN; sizes, order and the choice
between cuDNN and PyTorch's own kernels come from the trace. tests/needs_cuda_build/test_convolutions.py wrote the file.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cotenant.estimators.api import explain
from cotenant.estimators.cudnn.query import CudnnWorkspaces
from cotenant.estimators.replay_input import make_replay_input
from cotenant.gpu_specs import gpu_spec

TESTS = Path(__file__).parents[1]
GOLDEN = json.loads((TESTS / "golden" / "convolutions.json").read_text())
BLOCK = 512


def blocks(sizes):
    return [max(BLOCK, -(-size // BLOCK) * BLOCK) for size in sizes]


@pytest.mark.parametrize("case", GOLDEN)
def test_a_cpu_build_traces_the_allocations_of_the_cuda_build(case):
    name, *arguments = case.split()
    golden, gpu = GOLDEN[case], gpu_spec(name)
    result = explain(str(TESTS / "convolution_calls.py"), arguments, gpu=name)
    plans = {key: [int(nbytes) for nbytes in text.split()] for key, text in golden["answers"].items()}
    known = CudnnWorkspaces(version=golden["version"], capability=gpu.compute_capability, found=plans)
    stack = replace(result.replay_input.stack, cudnn_workspaces=known)
    events = make_replay_input(result.trace, gpu, stack).events
    found = [event.bytes for event in events if event.action == "alloc" and event.bytes > 0]
    assert blocks(found) == blocks(golden["allocations"])
