"""A CUDA build of torch on the null GPU. `COTENANT_CUDA_PYTHON` names a Python that has one (5 GB of wheels)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cotenant.gpu_specs import gpu_spec
from cotenant.nullgpu import NullGpuError, build_libraries, find_wheels, run_script
from running import is_running

MIB = 2**20
EXAMPLES = Path(__file__).parents[2] / "examples"
PYTHON = os.environ.get("COTENANT_CUDA_PYTHON", "")

pytestmark = pytest.mark.skipif(not PYTHON, reason="COTENANT_CUDA_PYTHON names no Python with a CUDA build of torch")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    return build_libraries(find_wheels(PYTHON), tmp_path_factory.mktemp("null-gpu"))


def run(libraries, script, *arguments, gpu="A100-40GB", **options):
    return run_script(libraries, gpu_spec(gpu), [str(EXAMPLES / script), *arguments], **options)


def a_script(folder, text):
    path = folder / "script.py"
    path.write_text(text)
    return str(path)


def test_built_libraries_are_used_again(libraries, monkeypatch):
    cache = libraries.preload[0].parents[1]
    monkeypatch.setattr("cotenant.nullgpu.build._Build.run", lambda _: pytest.fail("built again"))
    assert build_libraries(libraries.wheels, cache) == libraries
    assert [path.name for path in cache.iterdir()] == [libraries.preload[0].parent.name]


def test_no_compiler_is_a_message(libraries, tmp_path):
    with pytest.raises(NullGpuError, match="compiled on first use, and there is no `no-such-cc`"):
        build_libraries(libraries.wheels, tmp_path / "other", compiler="no-such-cc")


def test_perceptron_takes_the_same_bytes_on_every_run(libraries):
    found = [run(libraries, "mlp.py", record=True) for _ in range(2)]
    assert found[0] == found[1]
    assert (found[0].steps, found[0].ended) == (3, "steps")
    assert sum(found[0].history.allocations) > found[0].peak_allocated_bytes > 0
    assert found[0].peak_reserved_bytes % (2 * MIB) == 0


def test_convolutions_get_the_workspaces_that_cudnn_chooses_for_the_gpu(libraries, tmp_path):
    text = """
import torch
from torch import nn
net = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), nn.Conv2d(64, 128, 3, 1, 1), nn.Conv2d(128, 256, 3, 2, 1)).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    net(torch.randn(16, 3, 112, 112, device="cuda")).sum().backward()
    optimizer.step()
"""
    command = [a_script(tmp_path, text)]
    a100, t4 = (run_script(libraries, gpu_spec(gpu), command, record=True) for gpu in ("A100-40GB", "T4-16GB"))
    assert (a100.error, t4.error) == ("", "")
    assert a100.history.allocations != t4.history.allocations
    assert a100.peak_reserved_bytes != t4.peak_reserved_bytes


def test_transforms_take_the_work_areas_that_a_trace_assumes(libraries, tmp_path):
    text = """
import torch
free, held = (torch.ones(64, length, device="cuda") for length in (1024, 1000))
image = torch.ones(8, 96, 96, dtype=torch.cfloat, device="cuda")
torch.fft.rfft(free), torch.fft.rfft(held), torch.fft.ifft2(image), torch.fft.irfft(torch.fft.rfft(held))
"""
    found = run_script(libraries, gpu_spec("A100-40GB"), [a_script(tmp_path, text)], record=True)
    small, large, images = 64 * 513 * 8, 64 * 501 * 8, 8 * 96 * 96 * 8
    wanted = [4 * 64 * 1024, 4 * 64 * 1000, images, small, large, large, images, images]
    # The last one copies its complex input, which cuFFT may overwrite.
    assert list(found.history.allocations) == [*wanted, large, large, 4 * 64 * 1000, large, large]


def test_factorizations_and_sparse_products_run(libraries, tmp_path):
    """With the work areas that a trace assumes; cuSOLVER and cuSPARSE do not start without a GPU."""
    text = """
import torch
x, batch = torch.ones(200, 200, device="cuda"), torch.ones(16, 48, 48, device="cuda")
x @ x
torch.linalg.eigh(x), torch.linalg.qr(batch), torch.linalg.lstsq(batch, batch), torch.linalg.cholesky(x)
torch.linalg.svd(x), torch.linalg.solve(x, x), torch.linalg.ldl_factor(x)
offsets, columns = torch.arange(0, 400, 2, device="cuda"), torch.zeros(398, dtype=torch.int64, device="cuda")
rows = torch.sparse_csr_tensor(offsets, columns, torch.ones(398, device="cuda"), (199, 200))
rows @ x, rows @ x[0]
triples = torch.sparse_coo_tensor(torch.zeros(2, 500, dtype=torch.int64, device="cuda"), torch.ones(500, device="cuda"))
(triples @ triples)._nnz(), (rows @ rows.to_dense().T.to_sparse_csr())._nnz()
"""
    found = run_script(libraries, gpu_spec("A100-40GB"), [a_script(tmp_path, text)], record=True)
    assert (found.ended, found.error) == ("script", "")
    matrix, batch = 200 * 200 * 4, 16 * 48 * 48 * 4
    eigh = [matrix, 800, 4, 4 * (1 + 6 * 200 + 2 * 200**2), 1, 1]
    qr = [batch, batch, 3072, 128, 128, 4, *[48 * 32 * 4] * 16]
    first = 4  # the matrices, a product, and the workspace of cuBLAS
    assert list(found.history.allocations[first : first + len(eigh) + len(qr)]) == [*eigh, *qr]


def test_values_are_followed_without_another_allocation(libraries, tmp_path):
    """Tied weights, whose gradients are added in place, and layers that are computed again in the backward pass."""
    text = """
import torch
from torch.utils.checkpoint import checkpoint
words = torch.nn.Embedding(5000, 256).cuda()
inner = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.LayerNorm(256)).cuda()
optimizer = torch.optim.AdamW([*words.parameters(), *inner.parameters()])
ids = torch.arange(512, device="cuda").view(8, 64)
for _ in range(3):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        hidden = checkpoint(inner, checkpoint(inner, words(ids), use_reentrant=False), use_reentrant=False)
        logits = torch.nn.functional.linear(hidden + hidden.clone(), words.weight)
        loss = torch.nn.functional.cross_entropy(logits.view(-1, 5000), ids.view(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    command = [a_script(tmp_path, text)]
    env = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent / "src")}
    known = "cotenant.tracing.cuda_build.known_tensors:install"
    plain, followed = (
        run_script(libraries, gpu_spec("A100-40GB"), command, record=True, env=env, prelude=prelude)
        for prelude in ("", known)
    )
    assert (plain.error, followed.error) == ("", "")
    assert followed.history.allocations == plain.history.allocations
    assert followed.peak_reserved_bytes == plain.peak_reserved_bytes


def test_values_of_factories_are_known_to_its_prelude(libraries, tmp_path):
    """As transformers asks whether positions are packed; torch 2.8 has no `get_kernel`."""
    text = """
import torch
positions = torch.arange(7, device="cuda").unsqueeze(0)
assert (positions.diff(dim=-1) != 1).cumsum(-1)[:, -1].eq(0).all().item()
assert torch.arange(2, 9, device="cuda").sum().item() == 35 and torch.arange(0, 9, 2, device="cuda").sum().item() == 20
assert torch.full((3,), 7, device="cuda").sum().item() == 21
assert torch.ones(3, 3, dtype=torch.bool, device="cuda").all().item()
assert torch.rand(3, device="cuda").sum().item() == 0, "not computed"
"""
    env = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent / "src")}
    known = "cotenant.tracing.cuda_build.known_tensors:install"
    run = run_script(libraries, gpu_spec("A100-40GB"), [a_script(tmp_path, text)], env=env, prelude=known)
    assert (run.ended, run.error) == ("script", "")


def test_expandable_segments_grow_instead_of_piling_up(libraries, tmp_path):
    text = "import torch\nfor mib in range(20, 220, 20):\n    torch.empty(mib << 20, dtype=torch.int8, device='cuda')\n"
    command = [a_script(tmp_path, text)]
    env = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    plain = run_script(libraries, gpu_spec("A100-40GB"), command)
    expandable = run_script(libraries, gpu_spec("A100-40GB"), command, env=env)
    assert (plain.peak_allocated_bytes, expandable.peak_allocated_bytes) == (200 * MIB, 200 * MIB)
    assert plain.peak_reserved_bytes == sum(range(20, 220, 20)) * MIB, "no cached segment is large enough for the next"
    assert expandable.peak_reserved_bytes == 200 * MIB, "one segment grows"


def test_capture_takes_from_its_pool_what_captured_streams_allocate(libraries, tmp_path):
    """Of the streams, one waits for the captured one, one is another, and one waits for what was recorded before."""
    text = """
import torch
begin, joined, other, later = (torch.cuda.Stream() for _ in range(4))
before = begin.record_event()
graph = torch.cuda.CUDAGraph()
kept = []
with torch.cuda.graph(graph, stream=begin, capture_error_mode="relaxed"):
    joined.wait_event(begin.record_event())
    later.wait_event(before)
    for stream, mib in ((begin, 11), (joined, 12), (other, 13), (later, 14)):
        with torch.cuda.stream(stream):
            kept.append(torch.empty(mib << 20, dtype=torch.uint8, device="cuda"))
with torch.cuda.stream(joined):
    kept.append(torch.empty(15 << 20, dtype=torch.uint8, device="cuda"))
own = {mib: segment["segment_pool_id"] != (0, 0) for segment in torch.cuda.memory_snapshot()
       for block in segment["blocks"] for mib in range(11, 16) if block["requested_size"] == mib << 20}
assert own == {11: True, 12: True, 13: False, 14: False, 15: False}, own
small = [segment for segment in torch.cuda.memory_snapshot() if segment["total_size"] == 2 << 20]
assert [(segment["segment_pool_id"], segment["stream"]) for segment in small] == [((0, 0), 0)], "seeds are not captured"
"""
    assert run_script(libraries, gpu_spec("A100-40GB"), [a_script(tmp_path, text)]).error == ""


def test_full_gpu_raises_the_out_of_memory_error_of_torch(libraries):
    found = run(libraries, "mlp.py", total_bytes=gpu_spec("A100-40GB").context.typical_bytes + 64 * MIB)
    assert (found.ended, found.steps) == ("raised", 0)
    assert found.error.startswith("OutOfMemoryError: CUDA out of memory. Tried to allocate")


def test_script_that_crashes_is_an_error_with_its_last_words(libraries, tmp_path):
    script = a_script(tmp_path, "import ctypes, torch\nprint('about to crash', flush=True)\nctypes.string_at(0)\n")
    with pytest.raises(NullGpuError, match=r"(?s)ended with code -11: .*about to crash"):
        run_script(libraries, gpu_spec("A100-40GB"), [script])


def test_script_that_does_not_end_is_stopped_with_all_that_it_started(libraries, tmp_path):
    text = "import subprocess, sys\nprint(subprocess.Popen(['sleep', '1000']).pid, flush=True)\nsys.stdout.flush()\n"
    script = a_script(tmp_path, text + "import time\ntime.sleep(1000)\n")
    with pytest.raises(NullGpuError, match=r"(?s)did not end within 40 s: .*\d+") as stopped:
        run_script(libraries, gpu_spec("A100-40GB"), [script], timeout_s=40)
    pid = str(stopped.value).rsplit(maxsplit=1)[-1]
    assert not is_running(int(pid))
