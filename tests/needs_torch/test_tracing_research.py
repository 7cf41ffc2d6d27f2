"""Research code: old defaults, its own CUDA extensions, and errors that a GPU would raise."""

from __future__ import annotations

import pytest

from cotenant.core.errors import TraceError
from cotenant.core.ports import TraceOptions
from cotenant.tracing.process.program import Program
from cotenant.tracing.process.trace_script import trace_script
from traced_scripts import A100, allocations, by_category, peak, traced

torch = pytest.importorskip("torch", reason="tracing needs torch")

TRAINS = """
optimizer = torch.optim.SGD([p], 0.1)
for _ in range(4):
    optimizer.zero_grad()
    forward().sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param("torch.zeros(8, 64, 128, device='cuda').add_(p)", id="an addition"),
        pytest.param("torch.zeros(10, 64, device='cuda')[4:].copy_(torch.ones(8, 64, device='cuda'))", id="a copy"),
        pytest.param("torch.zeros(10, 64, device='cuda')[4:].copy_(torch.ones(8, 64))", id="a copy from the CPU"),
    ],
)
def test_in_place_results_of_another_shape_are_an_error(tmp_path, wrong):
    head = "import torch\np = torch.nn.Parameter(torch.ones(65, 64, device='cuda'))\nforward = lambda: p * 2\n"
    with pytest.raises(TraceError, match=r"RuntimeError.*train.py, line 4"):
        traced(tmp_path, f"{head}{wrong}\n{TRAINS}")


def test_in_place_broadcasting_allocates_nothing(tmp_path):
    source = """
import torch
p = torch.nn.Parameter(torch.ones(64, 64, device="cuda"))
row, one = torch.ones(64, device="cuda"), torch.ones((), device="cuda")
def forward():
    return (p * 2).add_(row).mul_(one).div_(row[:, None])
"""
    trace = traced(tmp_path, source + TRAINS)
    assert by_category(trace)["parameter"] == 64 * 64 * 4
    assert not [size for size in allocations(trace) if size > 64 * 64 * 4]


def test_the_default_tensor_type_can_be_a_cuda_type(tmp_path):
    source = """
import numpy, torch
torch.set_default_tensor_type("torch.cuda.FloatTensor")
kinds = [torch.Tensor([1.0]), torch.Tensor(3, 4), torch.Tensor(numpy.zeros((2, 2))), torch.Tensor(torch.Size([2]))]
assert torch.Tensor([1, 2], device=kinds[0].device).device == torch.Tensor(2, device="cuda").device == kinds[0].device
p = torch.nn.Parameter(torch.Tensor(64, 64))
print([tensor.device.type for tensor in kinds], [tuple(tensor.shape) for tensor in kinds])
def forward():
    return torch.cat([p, torch.Tensor([1e10]).expand(64, 1)], -1)
TRAINS
torch.set_default_tensor_type("torch.FloatTensor")
print(torch.Tensor([1.0]).device, torch.zeros(2).device)
import torch._dynamo  # which compares signatures
"""
    trace = traced(tmp_path, source.replace("TRAINS", TRAINS), steps=9)
    said = [line for line in (tmp_path / "log").read_text().splitlines() if "cpu" in line or "cuda" in line]
    assert said[-2:] == ["['cuda', 'cuda', 'cuda', 'cuda'] [(1,), (3, 4), (2, 2), (2,)]", "cpu cpu"]
    assert by_category(trace)["parameter"] == 64 * 64 * 4


COMPILES = """
import torch
from pathlib import Path
from torch.utils import cpp_extension
Path("up.cu").write_text("__global__ void up() {}")
p = torch.nn.Parameter(torch.ones(64, 64, device="cuda"))
def build():
    return BUILD
"""
BUILDS = [
    pytest.param("cpp_extension.load(name='up', sources=['up.cpp', 'up.cu'])", id="files"),
    pytest.param("cpp_extension.load_inline('up', 'void f();', '__global__ void up() {}')", id="text"),
]


@pytest.mark.parametrize("build", BUILDS)
def test_compiling_cuda_code_is_an_error_that_names_it(tmp_path, build):
    with pytest.raises(TraceError, match=r"the CUDA extension `up` cannot be traced.*train.py, line 8"):
        traced(tmp_path, COMPILES.replace("BUILD", build) + "build()\n")


@pytest.mark.parametrize("build", BUILDS)
def test_a_script_that_falls_back_from_cuda_code_is_traced(tmp_path, build):
    source = """
def forward():
    try:
        return build().up(p)
    except RuntimeError:
        return p.repeat_interleave(2, -1)
"""
    trace = traced(tmp_path, COMPILES.replace("BUILD", build) + source + TRAINS)
    assert 2 * 64 * 64 * 4 in allocations(trace)
    assert [("extension `up`" in warning) for warning in trace.warnings] == [True]
    assert peak(trace) > 0


VIEWS = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
general, dispatch = [], FakeTensorMode.dispatch
FakeTensorMode.dispatch = lambda mode, func, *rest, **more: general.append(func) or dispatch(mode, func, *rest, **more)
def views(device):
    joint = torch.empty(2, 5, 3 * 8, device=device)
    part = joint.split(8, 2)[1]
    turned = joint.transpose(0, 1)
    yield from (part.view(2, 5, 4, 2), part.view(10, 8), part.view(1, 10, 1, -1), turned.view(5, 2, 1, 3, 8))
    yield from (joint[:, 1:, :1].view(2, 4), joint[:1].expand(3, 5, 24).view(3, 120), joint[:1, :, ::2].view(5, 12))
assert [view.stride() for view in views("cuda")] == [view.stride() for view in views("cpu")]
assert not general, general
p = torch.nn.Parameter(torch.ones(64, 64, device="cuda"))
forward = lambda: p * 2
"""


def test_views_have_the_strides_of_pytorch_on_the_fast_path(tmp_path):
    traced(tmp_path, VIEWS + TRAINS)


@pytest.mark.parametrize("shape", [(8, 10), (-1, 7), (2, 5, 3, 3)])
def test_an_impossible_view_is_an_error(tmp_path, shape):
    source = f"import torch\ntorch.empty(2, 5, 24, device='cuda')[:, :, :8].transpose(0, 1).view({shape})\n"
    with pytest.raises(TraceError, match=r"train.py, line 2"):
        traced(tmp_path, source)


@pytest.mark.parametrize("shared", ["", "torch.distributed.all_reduce(overflowed, torch.distributed.ReduceOp.MAX)"])
def test_manual_loss_scaling_sees_no_overflow(tmp_path, shared):
    source = """
import torch
if SHARED:
    torch.distributed.init_process_group("nccl", init_method="tcp://localhost:1", world_size=2, rank=0)
p = torch.nn.Parameter(torch.ones(64, 64, device="cuda"))
master = p.detach().clone().float().requires_grad_()
optimizer = torch.optim.Adam([master])
for _ in range(4):
    (p * 2).sum().backward()
    master.grad, overflowed = p.grad.float(), torch.cuda.FloatTensor([0.0])
    torch._amp_foreach_non_finite_check_and_unscale_([master.grad], overflowed, torch.ones((), device="cuda"))
    CALL
    if overflowed.item() > 0:
        continue
    optimizer.step()
"""
    trace = traced(tmp_path, source.replace("SHARED", str(bool(shared))).replace("CALL", shared or "pass"))
    assert trace.header.steps == 3
    assert by_category(trace)["optimizer state"] >= 2 * 64 * 64 * 4


def test_a_cpu_tensor_can_be_pinned(tmp_path):
    source = """
import torch
window = torch.tensor([3, 4], dtype=torch.int32, pin_memory=True).cuda(non_blocking=True)
torch.set_default_device("cuda")
print(window.tolist(), window.dtype, torch.tensor([1.0]).device.type, torch.tensor(1, device="cpu").device.type)
torch.set_default_device(None)
from torch.jit._builtins import _find_builtin
print(_find_builtin(torch.tensor), torch.tensor(1).device.type)
p = torch.nn.Parameter(torch.ones(64, 64, device="cuda"))
forward = lambda: p * 2
"""
    traced(tmp_path, source + TRAINS)
    said = (tmp_path / "log").read_text().splitlines()
    assert said == ["[3, 4] torch.int32 cuda cpu", "aten::tensor cpu"]


LIBRARY = """
import json
class Tokenizer:
    @classmethod
    def from_pretrained(cls, name):
        raise OSError(f"Can't load tokenizer for '{name}'. Or is it offline?")
def table(path):
    return json.load(open(path))
"""
USES = "import sys, torch\nsys.path.insert(0, 'site-packages')\n"


@pytest.mark.parametrize("given", [[], ["8:int64:9"]])
@pytest.mark.parametrize(
    "line",
    [
        pytest.param("import hubs; hubs.Tokenizer.from_pretrained('nobody/nothing')", id="by a library"),
        pytest.param("torch.hub.load('nobody/nothing', 'model')", id="by PyTorch"),
    ],
)
def test_missing_model_files_are_not_synthesized(tmp_path, monkeypatch, line, given):
    a_library(tmp_path, monkeypatch)
    with pytest.raises(TraceError, match=r"train.py, line 3") as caught:
        traced(tmp_path, USES + line, synthetic_data=given)
    assert "fetch it once with `--allow-network`" in caught.value.hint
    assert "stand-in" not in caught.value.hint


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("import hubs; hubs.table('gone.json')", id="a library's table"),
        pytest.param(
            "data = torch.utils.data.DataLoader([1])\nclass Own:\n"
            "    def from_pretrained(self):\n        open('gone.json')\nOwn().from_pretrained()",
            id="a script's own file",
        ),
        pytest.param("import datasets; datasets.load_dataset('gone')", id="a data set of a hub"),
    ],
)
def test_missing_data_can_be_synthesized(tmp_path, monkeypatch, line):
    a_library(tmp_path, monkeypatch)
    with pytest.raises(TraceError, match=r"FileNotFoundError|OSError") as caught:
        traced(tmp_path, USES + line)
    assert "add `--synthetic-data " in caught.value.hint


def a_library(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "site-packages").mkdir()
    (folder / "site-packages" / "hubs.py").write_text(LIBRARY)
    (folder / "site-packages" / "datasets.py").write_text(
        'def load_dataset(name):\n    raise FileNotFoundError(f"Couldn\'t find a dataset script at {name}")\n'
    )


@pytest.mark.parametrize(("allow_network", "said"), [(False, "offline: 1"), (True, "offline: none")])
def test_a_script_with_network_access_can_query_the_hub(tmp_path, allow_network, said):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "offline: ${HF_HUB_OFFLINE-none}"\n')
    python.chmod(0o755)
    program = Program(kind="script", target="train.py", args=(), python=str(python))
    with pytest.raises(TraceError) as caught:
        trace_script(
            program,
            gpu=A100,
            workdir=str(tmp_path),
            env={"PATH": "/bin"},
            options=TraceOptions(allow_network=allow_network),
        )
    assert caught.value.log_tail.strip() == said


@pytest.mark.parametrize(
    ("line", "last"),
    [
        pytest.param("open('gone.json')", "FileNotFoundError", id="a file"),
        pytest.param("import os; os.listdir('gone')", "FileNotFoundError", id="a folder"),
        pytest.param("torch.ones(2, 3, device='cuda') @ torch.ones(2, 3, device='cuda')", "RuntimeError", id="shapes"),
        pytest.param("try:\n  open('gone')\nexcept OSError as e:\n  raise ValueError('no') from e", "no", id="both"),
    ],
)
def test_the_log_tail_is_the_output_of_the_script(tmp_path, line, last):
    with pytest.raises(TraceError):
        traced(tmp_path, f"import torch\n{line}\n")
    said = (tmp_path / "log").read_text()
    assert "train.py" in said
    assert last in said.splitlines()[-1]
    assert "cotenant/tracing" not in said
    assert "runpy" not in said


DRAWS = """
import torch
p = torch.nn.Parameter(torch.ones(16, 64, device="cuda"))
def forward():
    noise = DRAWN
    mask = torch.zeros(16, 64, device="cuda").scatter(-1, noise.topk(8, dim=-1).indices, 1.0).bool()
    return p[mask] * 2
"""


@pytest.mark.parametrize(
    "drawn",
    [
        pytest.param("torch.rand(16, 64, device='cuda')", id="new"),
        pytest.param("torch.randn_like(p)", id="like others"),
        pytest.param("p.new_empty(16, 64).uniform_()", id="in place"),
        pytest.param("torch.rand(16, 64, device='cuda').masked_fill(p.detach() == 0, -1e9)", id="but for padding"),
        pytest.param("torch.rand(16, 64).cuda()", id="on the CPU"),
    ],
)
def test_a_random_mask_is_no_router(tmp_path, drawn):
    trace = traced(tmp_path, DRAWS.replace("DRAWN", drawn) + TRAINS)
    assert trace.warnings == ()
    assert 16 * 8 * 4 in allocations(trace, "forward")


@pytest.mark.parametrize("scores", ["p * 3 + torch.randn_like(p)", "torch.randn_like(p).add_(p)"])
def test_a_topk_of_noisy_scores_is_a_router(tmp_path, scores):
    trace = traced(tmp_path, DRAWS.replace("DRAWN", scores) + TRAINS)
    assert ["every expert gets the same number" in warning for warning in trace.warnings] == [True]
    assert 16 * 8 * 4 in allocations(trace, "forward")
