"""Libraries whose Python code calls a compiled module: their Python code runs, and the module allocates."""

from __future__ import annotations

import textwrap

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.process.script_traceback import hint_for
from package_files import package
from traced_scripts import allocations, failing, traced

FLASH = """
__version__ = "{version}"
import torch
import flash_attn_2_cuda as compiled

@torch.library.custom_op("flash_attn::_forward", mutates_args=(), device_types="cuda")
def _forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout: float) -> list[torch.Tensor]:
    return list(compiled.fwd(q, k, v, None, None, dropout, 0.1, True, -1, -1, 0.0, False, None))

@_forward.register_fake
def _(q, k, v, dropout):
    raise AssertionError("only the results are known here, not the scratch memory")

class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, dropout):
        # Before 2.7 nothing was wrapped for `torch.compile`.
        call = torch.ops.flash_attn._forward if "{version}" >= "2.7" else _forward._init_fn
        results = call(q, k, v, dropout)
        out, sums = results[0], results[-3]
        ctx.save_for_backward(q, k, v, out, sums)
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, sums = ctx.saved_tensors
        made = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        results = compiled.bwd(grad, q, k, v, out, sums, *made, None, 0.0, 0.1, True, -1, -1, 0.0, {deterministic},
                               None, None)
        return *results[:3], None

class Varlen(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, offsets):
        results = compiled.varlen_fwd(q, k, v, None, offsets, offsets, None, None, None, None, 300, 300, 0.0, 0.1,
                                      False, True, -1, -1, 0.0, False, None)
        ctx.save_for_backward(q, k, v, results[0], results[-3], offsets)
        return results[0]

    @staticmethod
    def backward(ctx, grad):
        *saved, offsets = ctx.saved_tensors
        results = compiled.varlen_bwd(grad, *saved, None, None, None, offsets, offsets, None, 300, 300, 0.0, 0.1,
                                      False, True, -1, -1, 0.0, {deterministic}, None, None)
        return *results[:3], None
"""
ATTEND = """
import torch
from flash_attn import Attention, Varlen
q = torch.nn.Parameter(torch.zeros(2, 300, 4, 64, device="cuda", dtype=torch.bfloat16))
kv = torch.nn.Parameter(torch.zeros(2, 2, 300, {groups}, 64, device="cuda", dtype=torch.bfloat16))
offsets = torch.tensor([0, 300, 600], dtype=torch.int32, device="cuda")
optimizer = torch.optim.SGD([q, kv], lr=0.1)
for _ in range(4):
    {call}
    out.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
DENSE = "out = Attention.apply(q, kv[0], kv[1], 0.0)"
VARLEN = "out = Varlen.apply(q.flatten(0, 1), *kv.flatten(1, 2).unbind(0), offsets)"


@pytest.mark.parametrize("version", ["2.6.3", "2.8.3"])
def test_flash_attention_allocates_row_sums_and_accumulators(tmp_path, version):
    package(tmp_path, "flash_attn", FLASH.format(version=version, deterministic=False))
    trace = traced(tmp_path, ATTEND.format(call=DENSE, groups=4))
    assert allocations(trace, phase="forward").count(4 * 2 * 4 * 300) == 2  # sums of exponentials, in fp32
    backward = allocations(trace, phase="backward")
    assert backward.count(4 * 2 * 4 * 384) == 3  # the same in tiles of 128 rows
    assert backward.count(4 * 2 * 384 * 4 * 64) == 3  # gradients of the queries in fp32
    call = next(op for op in trace.ops if op.kind == "flash_attention")
    assert call.params == {"query": (2, 4, 300, 64), "keys": 300}


def test_grouped_queries_have_gradients_of_each_head(tmp_path):
    package(tmp_path, "flash_attn", FLASH.format(version="2.8.3", deterministic=False))
    backward = allocations(traced(tmp_path, ATTEND.format(call=DENSE, groups=2)), phase="backward")
    per_head = 2 * 2 * 300 * 4 * 64
    # Queries; keys and values of each head; and twice `kv`, which has half the heads, for its two selections.
    assert backward.count(per_head) == 3 * (1 + 2 + 2)


def test_deterministic_attention_of_many_lengths_has_an_accumulator_for_each_block(tmp_path):
    package(tmp_path, "flash_attn", FLASH.format(version="2.8.3", deterministic=True))
    trace = traced(tmp_path, ATTEND.format(call=VARLEN, groups=4))
    rows = 600 + 2 * 128
    blocks = -(-108 // (2 * 4))  # of 108 multiprocessors, for a batch of 2 and 4 heads
    assert allocations(trace, phase="backward").count(4 * blocks * rows * 4 * 64) == 3
    assert allocations(trace, phase="forward").count(4 * 4 * 600) == 2


def test_a_compiled_module_is_absent_without_its_package(tmp_path):
    with failing("import", "No module named 'flash_attn_2_cuda'"):
        traced(tmp_path, "import flash_attn_2_cuda")


def test_an_unknown_function_of_a_compiled_module_is_named(tmp_path):
    package(tmp_path, "flash_attn", FLASH.format(version="2.8.3", deterministic=False))
    with failing("unsupported", "`flash_attn_2_cuda.paged_fwd` is a compiled kernel whose memory is not known"):
        traced(tmp_path, "import flash_attn\nflash_attn.compiled.paged_fwd(1)")


FUSED_HEAD = """
import torch

def _forward_tile(tile, stride, targets, BLOCK_SIZE):
    tile.float().softmax(-1)  # without Triton; its kernel allocates nothing

_backward_tile = _forward_tile
"""

HEAD = """
import torch
from trl.kernels import chunked_logprob as kernels
model = torch.nn.Linear(64, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    tile, targets = torch.zeros(128, 3000, device="cuda"), torch.zeros(128, device="cuda")
    kernels._forward_tile(tile, tile.stride(0), targets, BLOCK_SIZE=1024)
    kernels._backward_tile(tile, tile.stride(0), targets, BLOCK_SIZE=1024)
    model(torch.zeros(2, 64, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_the_fused_output_layer_of_trl_allocates_what_its_triton_kernels_do(tmp_path):
    package(tmp_path, "trl.kernels.chunked_logprob", FUSED_HEAD)
    sizes = allocations(traced(tmp_path, HEAD))
    assert sizes.count(4 * 128 * 3000) == 3, "the tile of each step, and no copy of it"


SCAN = """
import torch
import selective_scan_cuda

class Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u, delta, a, b, c, d, z):
        out, states, gated = selective_scan_cuda.fwd(u, delta, a, b, c, d, z, None, True)
        ctx.save_for_backward(u, delta, a, b, c, d, z, states, out)
        return gated

    @staticmethod
    def backward(ctx, grad):
        u, delta, a, b, c, d, z, states, out = ctx.saved_tensors
        *made, dz = selective_scan_cuda.bwd(u, delta, a, b, c, d, z, None, grad, states, out, None, True, False)
        return *made[:-1], dz
"""
SCANNED = """
import torch
from mamba_ssm import Scan
def parameter(*shape, dtype=torch.bfloat16):
    return torch.nn.Parameter(torch.zeros(*shape, dtype=dtype, device="cuda"))
u, delta, z = (parameter(2, 64, 3000) for _ in range(3))
b, c = (parameter(2, 1, 16, 3000) for _ in range(2))
a, d = parameter(64, 16, dtype=torch.float32), parameter(64, dtype=torch.float32)
optimizer = torch.optim.SGD([u, delta, a, b, c, d, z], lr=0.1)
for _ in range(4):
    Scan.apply(u, delta, a, b, c, d, z).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_selective_scan_stores_a_state_every_2048_steps(tmp_path):
    package(tmp_path, "mamba_ssm", SCAN)
    trace = traced(tmp_path, SCANNED)
    assert allocations(trace, phase="forward").count(4 * 2 * 64 * 2 * 32) == 2  # two chunks, 32 numbers each
    assert allocations(trace, phase="backward").count(4 * 2 * 16 * 3000) == 3 * 2  # of `b` and `c`, in fp32


CONVOLUTION = """
import torch
import causal_conv1d_cuda

class Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight, bias)
        if {new}:
            out = torch.empty_like(x)
            causal_conv1d_cuda.causal_conv1d_fwd(x, weight, bias, None, None, out, None, True)
            return out
        return causal_conv1d_cuda.causal_conv1d_fwd(x, weight, bias, None, None, None, True)

    @staticmethod
    def backward(ctx, grad):
        x, weight, bias = ctx.saved_tensors
        if {new}:
            made = torch.empty_like(x), torch.zeros_like(weight), torch.zeros_like(bias)
            causal_conv1d_cuda.causal_conv1d_bwd(x, weight, bias, grad, None, None, None, *made, None, True)
            return made
        return causal_conv1d_cuda.causal_conv1d_bwd(x, weight, bias, grad, None, None, None, None, False, True)[:3]
"""
CONVOLVED = """
import torch
from causal_conv1d import Convolution
x, weight, bias = (torch.nn.Parameter(torch.zeros(*shape, device="cuda")) for shape in ((2, 64, 300), (64, 4), (64,)))
optimizer = torch.optim.SGD([x, weight, bias], lr=0.1)
for _ in range(4):
    Convolution.apply(x, weight, bias).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("new", [True, False], ids=["results from Python", "results from C++"])
def test_a_causal_convolution_makes_each_result_once(tmp_path, new):
    package(tmp_path, "causal_conv1d", CONVOLUTION.format(new=new))
    trace = traced(tmp_path, CONVOLVED)
    assert allocations(trace, phase="forward").count(4 * 2 * 64 * 300) == 2
    assert allocations(trace, phase="backward").count(4 * 64 * 4) == 3


LIBRARY_ATTENTION = """
import torch
q, k, v = (torch.nn.Parameter(torch.zeros({shape}, device="cuda", dtype=torch.float16)) for _ in range(3))
optimizer = torch.optim.SGD([q, k, v], lr=0.1)

class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        {forward}
        ctx.save_for_backward(q, k, v, *results)
        return results[0]

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, sums, seed, offset = ctx.saved_tensors
        {backward}
        return made[:3]

for _ in range(4):
    Attention.apply(q, k, v).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_pytorchs_flash_kernel_has_the_same_scratch_memory_where_a_library_calls_it(tmp_path):
    forward = "results = torch.ops.aten._flash_attention_forward(q, k, v, None, None, 300, 300, 0.0, True, False)[:4]"
    backward = (
        "made = torch.ops.aten._flash_attention_backward(grad, q, k, v, out, sums, None, None, 300, 300, 0.0, True, "
        "seed, offset)"
    )
    source = LIBRARY_ATTENTION.format(shape="2, 300, 4, 64", forward=forward, backward=backward)
    made = allocations(traced(tmp_path, source), phase="backward")
    assert made.count(4 * 2 * 4 * 384) == 3
    assert made.count(4 * 2 * 4 * 384 * 64) == 3


def test_a_mask_without_gradient_gets_none_from_the_efficient_kernel(tmp_path):
    forward = (
        "mask = torch.zeros(2, 4, 304, 304, device='cuda', dtype=torch.float16); ctx.mask = mask; results = "
        "torch.ops.aten._efficient_attention_forward(q, k, v, mask, None, None, 304, 304, 0.0, 0, True)[:4]"
    )
    backward = (
        "made = torch.ops.aten._efficient_attention_backward(grad, q, k, v, ctx.mask, out, None, None, 304, 304, sums, "
        "0.0, seed, offset, 0, False)"
    )
    source = LIBRARY_ATTENTION.format(shape="2, 304, 4, 64", forward=forward, backward=backward)
    made = allocations(traced(tmp_path, source), phase="backward")
    assert 2 * 2 * 4 * 304 * 304 not in made
    assert made.count(2 * 4 * 5 * (64 * 64 * 4 + 16)) == 3  # the workspace, in tiles of 64 queries


def test_a_scale_is_an_argument_of_the_efficient_kernels_backward(tmp_path):
    """As of diffusers, whose processors for xFormers give it; PyTorch's meta kernel raises."""
    forward = (
        "results = torch.ops.aten._efficient_attention_forward("
        "q, k, v, None, None, None, 304, 304, 0.0, 0, True, scale=0.1)[:4]"
    )
    backward = (
        "made = torch.ops.aten._efficient_attention_backward(grad, q, k, v, None, out, None, None, 304, 304, sums, "
        "0.0, seed, offset, 0, False, scale=0.1)"
    )
    with_scale = LIBRARY_ATTENTION.format(shape="2, 304, 4, 64", forward=forward, backward=backward)
    without = with_scale.replace(", scale=0.1", "")
    assert allocations(traced(tmp_path, with_scale)) == allocations(traced(tmp_path, without))


def test_the_package_that_is_missing_is_named_with_a_way_to_install_it_without_cuda():
    missing = hint_for(ModuleNotFoundError("No module named 'flash_attn'", name="flash_attn.layers"))
    assert missing is not None
    assert "FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE pip install" in missing


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ImportError("libcudart.so.12: cannot open shared object file: No such file"), "CUDA build of torch"),
        (ImportError("libc10_cuda.so: cannot open shared object file: No such file"), "CUDA build of torch"),
        (RuntimeError("Cannot access data pointer of Tensor that doesn't have storage"), "`--backend null-gpu`"),
    ],
)
def test_hints_for_compiled_extensions(error, words):
    assert words in (hint_for(error) or "")


def test_a_checkpoint_of_accelerate_is_not_written_by_safetensors(tmp_path):
    """`accelerate launch` has imported its function before the script starts."""
    package(tmp_path, "accelerate.utils.other", "def safe_save_file(tensors, path):\n    open(path)\n")
    source = """
    import torch
    from accelerate.utils import other
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(8, 8, device="cuda")).sum().backward()
        optimizer.step()
        other.safe_save_file(model.state_dict(), "missing/model.safetensors")
    """
    assert not traced(tmp_path, source).warnings


AUTOTUNER = textwrap.dedent(
    """
    class Autotuner:
        restore_value = ["out"]
        def __init__(self, configs):
            self.configs, self.cache = configs, {}
        def _bench(self, *args, config, **kwargs):
            raise RuntimeError("0 active drivers")
        def run(self, x, out, n):
            self.nargs = {"x": x, "out": out}
            if n not in self.cache:
                timings = {config: self._bench(x, out, config=config) for config in self.configs}
                self.cache[n] = min(timings, key=timings.get)
            self.best_config = self.cache[n]
    """
)


def test_the_autotuner_clears_the_cache_of_the_gpu_once_for_each_configuration(tmp_path):
    package(tmp_path, "triton.runtime.autotuner", AUTOTUNER)
    source = """
    import torch
    from triton.runtime.autotuner import Autotuner
    tuner = Autotuner(["small", "large"])
    weight = torch.nn.Parameter(torch.zeros(64, 8, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(4):
        out = weight * 2
        tuner.run(weight, out, 512)
        assert tuner.best_config == "small"
        out.sum().backward()
        optimizer.step()
    """
    made = allocations(traced(tmp_path, source))
    assert made.count(256 << 20) == 2


def test_xformers_chooses_among_the_kernels_of_a_cuda_build(tmp_path):
    package(tmp_path, "xformers.ops.fmha.common", "_built_with_cuda = False")
    package(tmp_path, "xformers.ops.fmha.dispatch", "import torch\nversion = lambda: torch.version.cuda, torch.float16")
    package(
        tmp_path, "xformers.ops.fmha.cutlass",
        "import torch\nclass FwOp:\n    SUPPORTED_ATTN_BIAS_TYPES = (torch.Tensor,)\nclass BwOp(FwOp): ...\n",
    )  # fmt: skip
    source = """
    import torch
    from xformers.ops.fmha import common, cutlass, dispatch
    mask = torch.zeros(8, 8, device="cuda")
    assert common._built_with_cuda and torch.backends.cuda.is_flash_attention_available()
    assert dispatch.version[0]() and dispatch.version[1] is torch.float16
    assert type(mask) in cutlass.FwOp.SUPPORTED_ATTN_BIAS_TYPES and type(mask) in cutlass.BwOp.SUPPORTED_ATTN_BIAS_TYPES
    weight = torch.nn.Parameter(mask)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(4):
        weight.sum().backward()
        optimizer.step()
    """
    assert traced(tmp_path, source).warnings == ()
