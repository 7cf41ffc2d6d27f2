"""PyTorch's CUDA build allocates for convolutions what the golden file says, and cuDNN answers what it says.

The file holds tracing on a CPU build to it (tests/needs_torch/test_convolution_goldens.py).
`COTENANT_WRITE_GOLDENS=1` writes it anew.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest

from cotenant.estimators.api import explain
from cotenant.estimators.cudnn.query import installed_cudnn, query_cudnn
from cotenant.gpu_specs import gpu_spec
from cotenant.nullgpu import build_libraries, find_wheels, run_script

TESTS = Path(__file__).parents[1]
GOLDEN = TESTS / "golden" / "convolutions.json"
SCRIPT = str(TESTS / "convolution_calls.py")
PYTHON = os.environ.get("COTENANT_CUDA_PYTHON", "")

pytestmark = pytest.mark.skipif(not PYTHON, reason="COTENANT_CUDA_PYTHON names no Python with a CUDA build of torch")


def test_null_gpus_and_cudnn_give_the_golden_numbers(tmp_path):
    wheels = find_wheels(PYTHON)
    libraries = build_libraries(wheels, tmp_path / "null-gpu")
    found = {}
    for name, arguments in itertools.product(("A100-40GB", "T4-16GB"), ((), ("benchmark",))):
        gpu = gpu_spec(name)
        trace = explain(SCRIPT, arguments, gpu=name, python=PYTHON).trace
        calls = [op for op in trace.ops if op.kind.startswith("conv")]
        answers = query_cudnn(installed_cudnn(trace.header.torch_folder), gpu, calls).workspaces
        run = run_script(libraries, gpu, [SCRIPT, *arguments], record=True)
        found[" ".join((name, *arguments))] = {
            "version": answers.version,
            "answers": {key: " ".join(map(str, plans)) for key, plans in sorted(answers.found.items())},
            "allocations": list(run.history.allocations),
        }
    if os.environ.get("COTENANT_WRITE_GOLDENS"):
        GOLDEN.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")
    golden = json.loads(GOLDEN.read_text())
    if golden["A100-40GB"]["version"] != found["A100-40GB"]["version"]:
        pytest.skip("the golden file is of another cuDNN")
    assert found == golden


THREE_DIMENSIONS = """
import torch
from torch import nn
conv = nn.Conv3d(512, 512, 3, padding=1, bias=False).cuda().bfloat16()
optimizer = torch.optim.SGD(conv.parameters(), lr=0.1)
x = torch.randn(8, 512, 2, 14, 14, device="cuda", dtype=torch.bfloat16, requires_grad=True)
conv(x).sum().backward()
optimizer.step()
"""


def test_engines_that_torch_skips_are_skipped(tmp_path):
    """cuDNN's first plan for this gradient is of an engine that torch 2.13 does not use for 3-D convolutions."""
    script = tmp_path / "job.py"
    script.write_text(THREE_DIMENSIONS)
    run = run_script(
        build_libraries(find_wheels(PYTHON), tmp_path / "libraries"), gpu_spec("A100-40GB"), [str(script)], record=True
    )
    events = explain(script, gpu="A100-40GB", python=PYTHON).traced_input.events
    found = [event.bytes for event in events if event.action == "alloc" and event.bytes]
    assert found == list(run.history.allocations)
