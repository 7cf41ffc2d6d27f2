"""Compiled kernels of libraries and scripts: known ones by what they allocate, unknown ones named."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from package_files import package
from traced_scripts import allocations, by_category, failing, traced

BUILDER = """
class OpBuilder:
    name = "op"
    def load(self, verbose=True):
        raise RuntimeError("Unable to JIT load the op due to ninja not being installed.")

class FusedAdamBuilder(OpBuilder):
    name = "fused_adam"

class RandomLTDBuilder(OpBuilder):
    name = "random_ltd"
"""
ADAM = """
import torch
from deepspeed.ops.op_builder.builder import FusedAdamBuilder, RandomLTDBuilder

class FusedAdam(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        kernels = FusedAdamBuilder().load()
        self.flag = torch.cuda.IntTensor([0])
        self.update = kernels.multi_tensor_adam

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lists = [[], [], [], []]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
                for values, tensor in zip(lists, (p.grad, p, state["exp_avg"], state["exp_avg_sq"])):
                    values.append(tensor)
            self.update(65536, self.flag, lists, group["lr"], 0.9, 0.999, 1e-8, 1, 1, 1, 0.0)

model = torch.nn.Linear(64, 8, bias=False).cuda()
optimizer = FusedAdam(model.parameters(), 0.1)
def train():
    for _ in range(5):
        model(torch.zeros(4, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_fused_optimizer_of_deepspeed_allocates_its_states(tmp_path):
    package(tmp_path, "deepspeed.ops.op_builder.builder", BUILDER)
    trace = traced(tmp_path, ADAM + "train()\n")
    assert by_category(trace)["optimizer state"] == 2 * 4 * 64 * 8
    assert trace.warnings == ()


def test_an_unknown_kernel_of_deepspeed_is_named(tmp_path):
    package(tmp_path, "deepspeed.ops.op_builder.builder", BUILDER)
    with failing("unsupported", "`random_ltd.token_sort_` is a compiled kernel whose memory is not known"):
        traced(tmp_path, ADAM + "RandomLTDBuilder().load().token_sort_(1)\n")


def test_kernels_of_apex_are_known(tmp_path):
    package(tmp_path, "apex.optimizers", "")
    source = """
    import amp_C, apex_C, torch
    flag, weights = torch.zeros(1, dtype=torch.int, device="cuda"), [torch.ones(8, device="cuda")] * 3
    norm, norms = amp_C.multi_tensor_l2norm(65536, flag, [weights], True)
    assert norm.shape == (1,) and norms.shape == (3,)
    flat = apex_C.flatten(weights)
    assert flat.shape == (24,) and apex_C.unflatten(flat, weights)[2].shape == (8,)
    model = torch.nn.Linear(64, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        model(torch.zeros(4, 64, device="cuda")).sum().backward()
        optimizer.step()
    """
    assert 4 * 320 in allocations(traced(tmp_path, source))


TRITON = """
class JITFunction:
    def __init__(self, function):
        self.function = function
    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.run(grid, *args, **kwargs)
    def run(self, grid, *args, **kwargs):
        raise RuntimeError("0 active drivers")
"""


def test_a_script_with_its_own_triton_kernel_is_traced(tmp_path):
    package(tmp_path, "triton.runtime.jit", TRITON)
    source = """
    import torch
    from triton.runtime.jit import JITFunction

    @JITFunction
    def double(x, out, n): ...

    counts, out = torch.tensor([3, 4]).cuda(), torch.zeros(64, 8, device="cuda")
    double[(1,)](counts, out, n=2)
    assert counts.sum().item() != 7  # no longer known
    weight = torch.nn.Parameter(torch.zeros(64, 8, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(4):
        (weight * out).sum().backward()
        optimizer.step()
    """
    trace = traced(tmp_path, source)
    assert any("own Triton kernels were not run" in warning for warning in trace.warnings)


KERNELS = """
import torch
from kernels import get_kernel
attend = get_kernel("someone/{name}").flash_attn_interface.flash_attn_varlen_func
qkv = torch.nn.Parameter(torch.zeros(3, 256, 4, 64, device="cuda", dtype=torch.bfloat16))
optimizer = torch.optim.SGD([qkv], lr=0.1)
for _ in range(4):
    attend(*qkv.unbind(0), max_seqlen_q=256).sum().backward()
    optimizer.step()
"""


def test_flash_attention_of_the_hub_is_known_by_name(tmp_path):
    package(tmp_path, "kernels", "def get_kernel(name):\n    raise OSError('offline')\n")
    trace = traced(tmp_path, KERNELS.format(name="flash-attention-3"))
    assert allocations(trace, phase="forward").count(4 * 256 * 4) >= 2  # sums of exponentials
    assert 4 * 256 * 4 * 64 in allocations(trace, phase="backward")  # gradients of the queries in fp32
    other = tmp_path / "other"
    other.mkdir()
    package(other, "kernels", "def get_kernel(name):\n    raise OSError('offline')\n")
    with failing("unsupported", "the kernel `someone/sparse-moe` of the hub"):
        traced(other, KERNELS.format(name="sparse-moe"))
