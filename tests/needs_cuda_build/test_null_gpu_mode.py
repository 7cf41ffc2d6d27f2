"""`cotenant estimate --backend null-gpu` on a CUDA build of torch, that of `COTENANT_CUDA_PYTHON`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from cotenant.core.errors import TraceError
from cotenant.core.ports import EstimateRequest, TraceOptions
from cotenant.core.units import MiB
from cotenant.estimators.traced import TracedEstimator
from cotenant.nullgpu import find_wheels

EXAMPLES = Path(__file__).parents[2] / "examples"
PYTHON = os.environ.get("COTENANT_CUDA_PYTHON", "")

pytestmark = pytest.mark.skipif(not PYTHON, reason="COTENANT_CUDA_PYTHON names no Python with a CUDA build of torch")

TIMEOUT_S = 900.0
PERCEPTRON = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
"""
STEPS = """
for _ in range(9):
    loss = model(torch.randn(256, 512, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def explain(tmp_path):
    """The result for a script of `text`; files that it writes would be in `tmp_path`."""

    def run(text, *launcher, backend="null-gpu", gpu="A100-40GB", synthetic_data=()):
        script = tmp_path / "train.py"
        script.write_text(text)
        request = EstimateRequest(
            command=(*launcher, str(script)), workdir=str(tmp_path), env=dict(os.environ), gpu=gpu, timeout_s=TIMEOUT_S,
            trace=TraceOptions(compiled_code="eager", synthetic_data=synthetic_data),
        )  # fmt: skip
        return TracedEstimator(backend=backend, python=PYTHON).explain(request)

    return run


def test_replay_of_the_history_reserves_what_pytorch_reserved(explain):
    result = explain(PERCEPTRON + STEPS)
    assert result.replay.peak_reserved_bytes == result.trace.header.counted_reserved_bytes
    found = result.estimate.breakdown_bytes
    parameters = (512 * 2048 * 2 + 2048 + 512) * 4
    assert found["parameter"] == parameters
    assert found["optimizer state"] == pytest.approx(2 * parameters, abs=8192)
    assert found["gradient"] == parameters
    assert {event.phase for event in result.trace.events} == {"load", "forward", "backward", "step"}


@pytest.mark.parametrize(
    "loop",
    [
        "for x in DataLoader(torch.ones(64 * 256, 512), 256): train(x)",
        "batches = iter(DataLoader(torch.ones(64 * 256, 512), 256))\nfor i in range(64): train(next(batches))",
        "for i in range(64): train(torch.ones(256, 512))",
        "for i in range(9):\n    for x in DataLoader(torch.ones(64 * 256, 512), 256): train(x)",
    ],
)
def test_validation_behind_the_steps_runs(explain, loop):
    text = """
from torch.utils.data import DataLoader
def train(x):
    model(x.cuda()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
LOOP
with torch.no_grad():
    for x in DataLoader(torch.ones(3 * 20_000, 512), 20_000): model(x.cuda())
"""
    result = explain(PERCEPTRON + text.replace("LOOP", loop))
    assert (result.trace.header.steps, result.trace.partial) == (3, False)
    assert result.estimate.peak_allocated_bytes > 2 * 20_000 * 2048 * 4
    assert not [sentence for sentence in result.estimate.warnings if "included" in sentence]


def test_a_second_stage_runs(explain):
    text = """
from torch.utils.data import DataLoader
def train(size):
    for x in DataLoader(torch.ones(8 * size, 512), size):
        model(x.cuda()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
for epoch in range(9): train(256)
for epoch in range(9): train(20_000)
"""
    result = explain(PERCEPTRON + text)
    assert (result.trace.header.steps, result.trace.partial) == (6, False)
    assert result.estimate.peak_allocated_bytes > 2 * 20_000 * 2048 * 4


@pytest.mark.parametrize(
    ("work", "steps"),
    [
        pytest.param(
            """
for step, (x,) in enumerate(DataLoader(TensorDataset(torch.ones(4000, 512)), 128)):
    train(x)
    if step % 6 == 5:
        with torch.no_grad(): model(torch.ones(20_000, 512, device="cuda"))
""",
            7,
            id="a validation every six steps",
        ),
        pytest.param(
            """
for (x,) in DataLoader(TensorDataset(torch.ones(4000, 512)), 1024, num_workers=2):
    train(x)
torch.cdist(features.detach().repeat(10, 1), features.detach().repeat(10, 1))
""",
            3,
            id="what follows a smaller last batch",
        ),
        pytest.param(
            """
optimizer = torch.optim.LBFGS(model.parameters(), history_size=5, max_iter=3)
for _ in range(90): optimizer.step(lambda: backward(torch.ones(256, 512)))
""",
            4,
            id="the history of LBFGS",
        ),
        pytest.param(
            """
for width in (1024, 2048, 4096):
    model = torch.nn.Sequential(torch.nn.Linear(512, width), torch.nn.Linear(width, 512)).cuda()
    optimizer = torch.optim.SGD(model.parameters())
    for epoch in range(3):
        for (x,) in DataLoader(TensorDataset(torch.ones(4000, 512)), 1000): train(x)
    del model, optimizer
    gc.collect()
""",
            9,
            id="a new model in each round",
        ),
    ],
)
def test_null_gpu_reaches_what_a_trace_reaches(explain, work, steps):
    text = """
import gc
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
def backward(x):
    global features
    optimizer.zero_grad()
    features = model(x.cuda())
    loss = features.square().mean()
    loss.backward()
    return loss
def train(x):
    backward(x)
    optimizer.step()
"""
    optimizer = "" if "optimizer = " in work else "optimizer = torch.optim.SGD(model.parameters())\n"
    null, traced = (explain(text + optimizer + work, backend=backend) for backend in ("null-gpu", "trace"))
    assert (null.estimate.partial, null.trace.header.steps) == (False, steps)
    assert traced.trace.header.steps == steps
    assert null.replay.peak_allocated_bytes == traced.replay.peak_allocated_bytes
    assert null.replay.peak_reserved_bytes == traced.replay.peak_reserved_bytes


def test_script_without_an_optimizer_has_twenty_backward_passes(explain):
    text = """
for _ in range(90):
    model(torch.ones(256, 512, device="cuda")).square().mean().backward()
    for parameter in model.parameters():
        parameter.data.sub_(parameter.grad)
        parameter.grad = None
"""
    result = explain(PERCEPTRON.replace("optimizer =", "#") + text)
    assert result.trace.header.steps == 20
    assert any("the script has no optimizer" in warning for warning in result.estimate.warnings)


def test_an_evaluation_is_answered_unless_the_script_made_an_optimizer(explain):
    text = """
model.eval()
with torch.no_grad():
    for _ in range(9):
        model(torch.ones(256, 512, device="cuda")).square().mean().item()
"""
    script = PERCEPTRON.replace("optimizer =", "#") + text
    null, traced = (explain(script, backend=backend) for backend in ("null-gpu", "trace"))
    assert null.trace.header.steps == 0
    assert null.replay.peak_reserved_bytes == traced.replay.peak_reserved_bytes
    with pytest.raises(TraceError, match="without an optimizer step"):
        explain(PERCEPTRON + text)


def test_compiled_code_takes_the_memory_of_compiled_code(explain):
    """Eager autograd saves the input of each sine, 16 MiB; compiled code saves the first and computes the others."""
    chain = """
def chain(x):
    for _ in range(20):
        x = x.sin()
    return x
inner = torch.compile(chain) if COMPILED else chain
linear = model
def model(x):
    return linear(inner(x.repeat(32, 1).requires_grad_()))
"""
    eager = explain("COMPILED = False" + PERCEPTRON + chain + STEPS)
    compiled = explain("COMPILED = True" + PERCEPTRON + chain + STEPS, backend="auto")
    assert compiled.trace.header.backend == "null-gpu"
    assert any("runs compiled code" in warning for warning in compiled.estimate.warnings)
    saved_bytes = 19 * 32 * 256 * 512 * 4
    less = eager.replay.peak_allocated_bytes - compiled.replay.peak_allocated_bytes
    assert less == pytest.approx(saved_bytes, rel=0.1)


def test_what_compiled_code_runs_eagerly_is_left_as_it_is(explain):
    """Dynamo reads each frame behind a graph break, and would read the kernels that know values."""
    momentum = """
class Momentum(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.compile
    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            torch._dynamo.graph_break()
            state = self.state[parameter]
            if not state:
                state["step"] = torch.tensor(0, device=parameter.device)
                state["mean"] = torch.zeros_like(parameter)
            state["step"] += 1
            state["mean"].lerp_(parameter.grad, 0.1)
            torch._dynamo.graph_break()
            parameter.add_(state["mean"] / (1 - 0.9 ** state["step"]), alpha=-0.1)
optimizer = Momentum(model.parameters())
"""
    result = explain(PERCEPTRON + momentum + STEPS)
    assert not result.estimate.partial
    assert not [warning for warning in result.estimate.warnings if "raised" in warning]


def test_cuda_graphs_of_compiled_code_hold_what_inductor_knows(explain):
    """Inductor checks that nothing but outputs of its graphs is in their pool."""
    result = explain(PERCEPTRON + 'model = torch.compile(model, mode="reduce-overhead")\n' + STEPS)
    assert not result.estimate.partial
    assert any(event.stream < 0 for event in result.trace.events)


def test_kernels_that_are_chosen_by_speed_have_one_candidate_and_a_warning(explain):
    compiled = """
import gc
model = torch.compile(model, mode="max-autotune")
model(torch.randn(256, 512, device="cuda")).mean().backward()
optimizer.zero_grad()
from torch._inductor.select_algorithm import TritonTemplateCaller
names = {found.name for found in gc.get_objects() if type(found) is TritonTemplateCaller}
assert len(names) <= 6, f"of two products and their gradients: {names}"
"""
    result = explain(PERCEPTRON + compiled + STEPS)
    assert not result.estimate.partial
    assert any("chosen by their speed" in warning for warning in result.estimate.warnings)


def test_step_of_a_cuda_graph_is_captured_after_those_that_warm_it_up(explain):
    script = (EXAMPLES / "cuda_graph.py").read_text()
    null, traced = (explain(script, backend=backend) for backend in ("null-gpu", "trace"))
    assert not null.estimate.partial
    assert any(event.stream < 0 for event in null.trace.events), "the pool"
    assert null.replay.peak_reserved_bytes == traced.replay.peak_reserved_bytes


def test_script_writes_no_file_and_requests_its_gpu(explain, tmp_path):
    result = explain(
        """
import ctypes, os, subprocess, torch
open("made", "w").write("x")
assert open("made").read() == "x"
shown = subprocess.run(
    ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"],
    capture_output=True, text=True, check=True,
).stdout
assert shown.strip() == "NVIDIA A100-SXM4-40GB, 40960", shown
nvml, memory = ctypes.CDLL("libnvidia-ml.so.1"), (ctypes.c_ulonglong * 3)()
handle = ctypes.c_void_p()
assert nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
before = torch.ones(32 << 20, dtype=torch.uint8, device="cuda")
assert nvml.nvmlDeviceGetMemoryInfo(handle, memory) == 0
assert memory[2] >= 32 << 20, list(memory)
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
assert getenv(b"CUDA_VISIBLE_DEVICES").startswith(b"GPU-42424242"), "what a driver loaded by its path would see"
assert os.environ.get("CUDA_VISIBLE_DEVICES", "0") == "0"
"""
        + PERCEPTRON
        + STEPS
    )
    assert not result.estimate.partial
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_values_of_data_are_known_and_others_assumed(explain):
    result = explain(
        PERCEPTRON
        + """
lengths = torch.tensor([7, 8], dtype=torch.int64).cuda()
found = (lengths + 1).sum()
model(torch.randn(2, 512, device="cuda"))
assert found.item() == 17, "kernels in between change nothing"
assert torch.ones(4, 9, device="cuda", dtype=torch.long).to(torch.bool).all()
mask = torch.arange(10, device="cuda") > 6
assert mask.tolist() == [False] * 7 + [True] * 3
assert torch.rand(10, device="cuda")[mask].shape == mask.nonzero().flatten().shape == (3,)
assert torch.rand(10, device="cuda").masked_select(~mask).numel() == 7
assert (mask ^ True).sum() == 7 and (mask & ~mask).any() == False and torch.equal(mask, mask)
assert torch.zeros(3, device="cuda").repeat_interleave(torch.tensor([1, 0, 4]).cuda()).shape == (5,)
assert torch.zeros(3, device="cuda").repeat_interleave(torch.randint(9, (3,), device="cuda")).shape == (3,)
mask[:8] = True
assert mask.sum() == 10 and int(mask.cpu().sum()) == 10
with torch.inference_mode():
    assert not (torch.ones(3, device="cuda").mul_(2) > 1).any(), "nothing counts what is written here"
loss = model(torch.randn(2, 512, device="cuda")).mean()
assert loss.item() == 1
assert torch.isfinite(loss).item()
assert not torch.isnan(loss).item()
assert not bool((~torch.isfinite(loss) | (loss < 0)).any()), "as DeepSpeed asks whether a gradient norm is invalid"
assert (loss == loss).cpu().all() and loss.new_ones(2, device="cpu").sum() == 2
assert (torch.rand(10, device="cuda") > 0.5).nonzero().shape == (10, 1), "all, where a mask is not known"
scaler = torch.amp.GradScaler()
"""
        + STEPS.replace("loss.backward()", "scaler.scale(loss).backward()").replace(
            "optimizer.step()", "scaler.step(optimizer); scaler.update()"
        )
    )
    assert result.trace.header.steps == 3
    assert any(
        "values that a null GPU does not compute were read" in warning for warning in result.estimate.warnings
    ), result.estimate.warnings


def test_memory_of_other_libraries_is_beside_the_context(explain):
    """As an extension calls `cudaMalloc`; what it calls `cudaMallocManaged` for moves to and from the GPU."""
    text = """
import ctypes
runtime, address, managed = ctypes.CDLL("libcudart.so.CUDA"), ctypes.c_void_p(), ctypes.c_void_p()
for _ in range(2):
    assert runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(300 << 20)) == 0
    assert runtime.cudaFree(address) == 0
assert runtime.cudaMallocManaged(ctypes.byref(managed), ctypes.c_size_t(100 << 20), 1) == 0
ctypes.memset(managed, 1, 100 << 20)
""".replace("CUDA", str(find_wheels(PYTHON).cuda_major))
    plain, more = explain(PERCEPTRON + STEPS), explain(PERCEPTRON + text + STEPS)
    assert plain.trace.header.outside_bytes == 0
    assert more.estimate.device_bytes - plain.estimate.device_bytes == 300 * MiB
    assert more.estimate.bound_bytes - plain.estimate.bound_bytes == 300 * MiB
    assert more.estimate.peak_reserved_bytes == plain.estimate.peak_reserved_bytes
    warnings = [warning for warning in more.estimate.warnings if "MiB" in warning]
    assert "300.0 MiB were allocated outside of PyTorch's allocator" in warnings[0]
    assert warnings[1].startswith("100.0 MiB of managed memory")


def test_kernels_of_nvrtc_are_compiled_and_launched(explain):
    kernel = """
square = torch.cuda.jiterator._create_jit_fn("template <typename T> T square(T x) { return x * x; }")
assert square(torch.ones(5, device="cuda")).shape == (5,)
"""
    assert explain(PERCEPTRON + kernel + STEPS).trace.header.steps == 3


def test_rank_of_torchrun_runs_pytorchs_own_reducer(explain):
    result = explain(
        """
import os, torch
torch.distributed.init_process_group("nccl")
assert (torch.cuda.device_count(), torch.distributed.get_world_size()) == (4, 4)
"""
        + PERCEPTRON
        + "model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[int(os.environ['LOCAL_RANK'])])\n"
        + STEPS,
        "torchrun",
        "--nproc-per-node",
        "4",
    )
    assert result.estimate.processes == 4
    assert result.trace.header.nccl.group_sizes[0] == 4
    assert result.replay.peak_reserved_bytes == result.trace.header.counted_reserved_bytes


def test_script_that_wants_more_than_the_gpu_is_reported_with_its_need(explain):
    big = "keep = [torch.empty(1 << 30, dtype=torch.uint8, device='cuda') for _ in range(20)]\n"
    result = explain(PERCEPTRON + big + STEPS, gpu="T4-16GB")
    assert result.fit.verdict == "no"
    assert result.fit.reserved_bytes > 20 * 1024 * MiB


def test_script_that_trains_in_a_fork_gets_an_answer(explain):
    text = """
import os
pid = os.fork()
if pid == 0:
    import torch
    torch.ones(5, device="cuda")
    os._exit(0)
os.waitpid(pid, 0)
"""
    with pytest.raises(TraceError) as stopped:
        explain(text)
    assert stopped.value.kind == "no-cuda"


def _has_numpy():
    return (
        bool(PYTHON)
        and subprocess.run([PYTHON, "-c", "import numpy"], check=False, capture_output=True).returncode == 0
    )


TOKENS = """
import glob
import numpy
import torch
tokens = numpy.memmap(sorted(glob.glob("data/fineweb/train_*.bin"))[0], dtype=numpy.uint16, mode="r")
batch = torch.from_numpy(tokens[: 8 * 128].astype(numpy.int64)).view(8, 128).cuda()
model = torch.nn.Sequential(torch.nn.Embedding(1000, 64), torch.nn.Linear(64, 1000)).cuda()
model.load_state_dict(torch.load("weights/pretrained.pth", map_location="cpu"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(9):
    torch.nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.skipif(not _has_numpy(), reason="the Python of COTENANT_CUDA_PYTHON has no NumPy")
def test_data_and_weights_that_are_absent_are_replaced(explain):
    result = explain(TOKENS, synthetic_data=("1024:int64:1000",))
    assert result.estimate.breakdown_bytes["parameter"] == 1000 * 64 * 2 * 4 + 4096
    assert any("replaced by synthetic data" in warning for warning in result.estimate.warnings)
    assert any("keeps its initial ones" in warning for warning in result.estimate.warnings)


def test_a_script_may_ask_for_a_terminal(explain):
    text = 'import os\nrows, columns = os.popen("stty size", "r").read().split()\nassert int(columns) == 80\n'
    assert explain(text + PERCEPTRON + STEPS).estimate.breakdown_bytes["parameter"]


POLICY = """
from torch.distributions import Categorical, Normal
for _ in range(9):
    out = model(torch.ones(1, 512, device="cuda"))
    assert (out == out).view(-1).all()
    of_actions, of_controls = Categorical(logits=out[:, :4]), Normal(out[:, 4], out[:, 5].exp())
    loss = of_actions.log_prob(of_actions.sample()).sum() + of_controls.log_prob(of_controls.sample()).sum()
    loss.backward()
    optimizer.step()
"""


def test_distributions_check_values_that_are_not_known(explain):
    assert explain(PERCEPTRON + POLICY).trace.header.steps >= 3


FILES = """
import glob
import torch
tokens = torch.from_file(glob.glob("data/fineweb_train_*.bin")[0], shared=False, size=256, dtype=torch.int32)
torch.save({"tokens": tokens.cuda()}, "state.pt")
assert torch.load("state.pt")["tokens"].shape == (256,)
"""


def test_files_that_pytorch_opens_itself_are_those_of_the_sandbox(explain, tmp_path):
    result = explain(FILES + PERCEPTRON + STEPS, synthetic_data=("1024:int64:1000",))
    assert result.estimate.breakdown_bytes["parameter"]
    assert not (tmp_path / "state.pt").exists()


SPAWNED = """
import torch
from torch.utils.data import DataLoader
class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 1024
    def __getitem__(self, index):
        return torch.load("samples.pt")[index % 4]
if __name__ == "__main__":
    torch.multiprocessing.set_start_method("spawn")
    torch.save(torch.ones(4, 512), "samples.pt")
"""


def test_workers_of_a_loader_read_the_files_of_the_sandbox(explain):
    steps = STEPS.replace("range(9)", "DataLoader(Samples(), 256, num_workers=2)").replace("\n", "\n    ")
    result = explain(SPAWNED + PERCEPTRON.replace("\n", "\n    ") + steps)
    assert result.estimate.breakdown_bytes["parameter"] == (512 * 2048 * 2 + 2048 + 512) * 4


@pytest.mark.skipif(not _has_numpy(), reason="the Python of COTENANT_CUDA_PYTHON has no NumPy")
def test_the_error_of_absent_data_names_the_option(explain):
    with pytest.raises(TraceError) as caught:
        explain('import numpy\nnumpy.memmap("data/train.bin", dtype="uint16", mode="r")')
    assert "--synthetic-data" in (caught.value.hint or "")
