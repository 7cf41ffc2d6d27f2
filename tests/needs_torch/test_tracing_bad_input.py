"""Unusual, wrong and slow scripts are traced, or end with an error that names the line."""

from __future__ import annotations

import re
import time

import pytest

from cotenant.core.errors import TraceError
from traced_scripts import allocations, by_category, failing, peak, traced

torch = pytest.importorskip("torch", reason="tracing needs torch")

MODEL = """
import torch
from torch import nn
model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
TRAIN = """
for _ in range({steps}):
    optimizer.zero_grad()
    model(torch.randn(4, 64, device="cuda")).square().mean().backward()
    optimizer.step()
"""


def trained(folder, lines, *args, steps=5, **more):
    return traced(folder, MODEL + lines + TRAIN.format(steps=steps), *args, **more)


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(
            """
import os
os.environ["CUDA_VISIBLE_DEVICES"] = "3"
assert torch.cuda.is_available() and torch.cuda.device_count() == 1
""",
            id="chooses a card",
        ),
        pytest.param(
            """
import atexit, os, signal
atexit.register(lambda: open("late", "w").write("x"))
def stop(*_):
    raise SystemExit(1)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
    signal.signal(number, stop)
signal.alarm(300)
""",
            id="waits for signals",
        ),
        pytest.param(
            """
class Noisy:
    def __del__(self):
        raise RuntimeError("in the end")
for _ in range(3):
    Noisy()
""",
            id="raises where nobody listens",
        ),
        pytest.param(
            """
import threading
stop = threading.Event()
threading.Thread(target=stop.wait).start()
threading.Thread(target=stop.wait, daemon=True).start()
""",
            id="has threads that never end",
        ),
        pytest.param(
            """
import multiprocessing, os
pid = os.fork()
if not pid:
    os._exit(0)
os.waitpid(pid, 0)
queue = multiprocessing.get_context("fork").SimpleQueue()
worker = multiprocessing.get_context("fork").Process(target=queue.put, args=(7,))
worker.start()
assert queue.get() == 7
""",
            id="forks",
        ),
        pytest.param(
            """
import subprocess
try:
    print(subprocess.run(["nvidia-smi"], capture_output=True).stdout)
except OSError as error:
    print(error)
assert subprocess.run(["echo", "hello"], capture_output=True, text=True).stdout == "hello\\n"
""",
            id="starts programs",
        ),
        pytest.param(
            """
import os
os.makedirs("runs/1", exist_ok=True)
os.chdir("runs/1")
open("log", "w").write("x")
assert os.listdir() == ["log"] and os.path.basename(os.getcwd()) == "1"
""",
            id="changes its folder",
        ),
        pytest.param("\nprint('x' * 200 * 50_000)\n", id="prints much"),
        pytest.param(
            """
free, total = torch.cuda.mem_get_info()
batch = min(512, int(0.8 * free) // 1_000_000)
stats = torch.cuda.memory_stats()
assert stats["allocated_bytes.all.current"] == stats["requested_bytes.all.current"] == torch.cuda.memory_allocated()
assert stats["reserved_bytes.all.peak"] == torch.cuda.max_memory_reserved() == 2 << 20 and stats["num_ooms"] == 0
assert torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["peak"] > 0 and stats["of.a.later.torch"] == 0
assert torch.cuda.memory.memory_allocated() == torch.cuda.memory_allocated(0) == torch.cuda.memory_allocated("cuda:0")
print(torch.cuda.memory_summary(), torch.cuda.memory_snapshot(), torch.cuda.list_gpu_processes())
print(torch.cuda.utilization(), torch.cuda.temperature(), torch.cuda.power_draw(), torch.cuda.clock_rate())
assert len(torch.cuda.nccl.version()) == 3 and torch.cuda.get_per_process_memory_fraction() == 1.0
torch.cuda.reset_peak_memory_stats()
assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated() > 0
""",
            id="reads all there is of memory",
        ),
        pytest.param(
            """
import sys
sys.setrecursionlimit(5000)
sys.stdout = open("out.txt", "w")
sys.excepthook = lambda *_: None
""",
            id="changes Python itself",
        ),
    ],
)
def test_unusual_but_valid_scripts_are_traced_completely(tmp_path, lines):
    trace = trained(tmp_path, lines)
    assert (trace.partial, trace.warnings, trace.header.steps) == (False, (), 3)
    assert {path.name for path in tmp_path.iterdir()} <= {"train.py", "answer", "log", "scratch"}


def test_a_script_that_exits_after_two_steps_is_complete(tmp_path):
    lines = TRAIN.format(steps=2) + "import sys\nsys.exit(0)\n"
    assert not traced(tmp_path, MODEL + lines).partial


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_a_memory_fraction_set_by_the_script_limits_allocation(tmp_path, share):
    lines = f"""
import torch
torch.cuda.set_per_process_memory_fraction({share})
batch = 1 << 22
while True:
    try:
        x = torch.empty(batch, 4096, device="cuda")
        break
    except RuntimeError as error:
        assert "out of memory" in str(error)
        batch //= 2
del x
"""
    trace = traced(tmp_path, lines + MODEL + TRAIN.format(steps=3))
    most = share * 40 * 2**30
    assert 0.5 * most < peak(trace) <= most
    assert trace.header.memory_fraction == share


def test_a_memory_fraction_above_1_is_an_error_with_its_line(tmp_path):
    with failing("raised", "Invalid fraction value: 2. Allowed range: 0~1 (train.py, line 3)"):
        traced(tmp_path, "import torch\n\ntorch.cuda.set_per_process_memory_fraction(2)\n")


def test_channels_last_for_a_five_dimensional_weight_is_an_error(tmp_path):
    lines = "from torch import nn\nimport torch\nnn.Conv3d(3, 8, 3).cuda().to(memory_format=torch.channels_last)\n"
    with failing("raised", "required rank 4 tensor to use channels_last format (train.py, line 3)"):
        traced(tmp_path, lines)


def test_allocator_settings_made_by_a_script_are_recorded(tmp_path):
    lines = "import os\nos.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'\n"
    trace = traced(tmp_path, lines + MODEL + TRAIN.format(steps=3))
    assert trace.header.settings["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"


OVER = """
import threading
next(thread for thread in threading.enumerate() if hasattr(thread, "over")).over()  # time is
"""


def until_over(folder, source):
    return traced(folder, source + OVER, deadline={"at_s": time.monotonic() + 3600, "timeout_s": 3600.0})


def test_a_timeout_before_a_step_is_an_error_with_the_current_line(tmp_path):
    words = "had not finished 1h00m after it started, without an optimizer step; it was at train.py, line 4"
    with failing("timeout", words):
        until_over(tmp_path, "import torch\nx = torch.ones(3, device='cuda')")


def test_a_timeout_after_too_few_steps_gives_a_partial_trace(tmp_path):
    found = until_over(tmp_path, MODEL + TRAIN.format(steps=2))
    assert (found.partial, found.header.steps) == (True, 2)
    assert "was stopped 1h00m after it started (`--timeout`); it was at train.py, line 13" in found.warnings[0]


def test_a_timeout_after_the_traced_steps_gives_a_complete_trace(tmp_path):
    loader = "loader = torch.utils.data.DataLoader(torch.ones(64, 64), 8)\nx = next(iter(loader))\n"
    found = until_over(tmp_path, MODEL + loader + TRAIN.format(steps=3))
    assert not found.partial
    assert "the work after training was not traced to its end within 1h00m (`--timeout`)" in found.warnings[0]


def test_moved_parameters_retain_their_class_and_attributes(tmp_path):
    trace = trained(
        tmp_path,
        """
class Special(nn.Parameter):
    def doubled(self):
        return 2 * self
layer = nn.Linear(8, 8)
layer.bias = Special(torch.zeros(8))
layer.weight.no_decay = True
first = layer.weight, layer.bias
layer.cuda()
assert layer.weight is first[0] and layer.weight.no_decay and layer.weight.is_cuda
assert layer.bias is first[1] and isinstance(layer.bias, Special) and layer.bias.doubled().is_cuda
layer.cpu()
assert layer.weight.no_decay and not layer.weight.is_cuda and type(layer.bias) is Special
assert layer(torch.ones(2, 8)).sum().item() == layer(torch.ones(2, 8)).sum().item()
""",
    )
    assert not trace.partial


def test_a_parameter_whose_data_is_replaced_is_on_the_gpu(tmp_path):
    trace = trained(
        tmp_path,
        """
other = nn.Parameter(torch.ones(1000))
adam = torch.optim.Adam([other])
other.data = other.data.cuda()
assert other.is_cuda and isinstance(other, nn.Parameter)
(other * 2).sum().backward()
assert other.grad.is_cuda
adam.step()
assert adam.state[other]["exp_avg"].is_cuda
plain = torch.ones(3)
plain.data = plain.data.cuda()
assert plain.is_cuda and not isinstance(plain, nn.Parameter)
""",
        steps=3,
    )
    assert by_category(trace)["optimizer state"] == 2 * 4000


def test_expert_routers_get_equal_counts(tmp_path):
    trace = trained(
        tmp_path,
        """
scores = torch.randn(64, 8, device="cuda")
chosen = scores.argmax(-1)
mask = nn.functional.one_hot(input=chosen, num_classes=8).bool()
assert [len(torch.where(mask[:, expert])[0]) for expert in range(8)] == [8] * 8
weights, places = scores.topk(2)
order = places.flatten().argsort()
counts = places.flatten().bincount(minlength=8)
assert counts.tolist() == [16] * 8 and order.shape == (128,)
parts = scores[order // 2].split(counts.tolist())
assert {part.shape[0] for part in parts} == {16}
many = nn.functional.one_hot(torch.randn(4096, 256, device="cuda").topk(2)[1], 256).permute(2, 1, 0)
assert many.sum((-1, -2))[7].item() == 32 and torch.where(many[7])[0].shape == (32,)
best = scores.topk(8)[1]
assert (best == 3).nonzero().shape == (64, 2)  # all eight are taken: each is found once in a row
assert (scores > 0).nonzero().shape == (64 * 8, 2)
""",
    )
    assert any("every expert gets the same number" in warning for warning in trace.warnings)
    assert any("every element is found" in warning for warning in trace.warnings)


def test_flex_attention_is_traced_as_its_kernel(tmp_path):
    trace = trained(
        tmp_path,
        """
from torch.nn.attention.flex_attention import flex_attention
q, k, v = (torch.randn(2, heads, 512, 16, device="cuda", requires_grad=True) for heads in (4, 2, 2))
out, lse = flex_attention(q, k, v, enable_gqa=True, return_lse=True)
assert out.shape == q.shape and lse.shape == (2, 4, 512)
out.sum().backward()
assert q.grad.shape == q.shape and k.grad.shape == k.shape
""",
    )
    assert max(allocations(trace)) <= 4 * 2 * 4 * 512 * 16
    assert any("flex_attention" in warning for warning in trace.warnings)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        pytest.param(
            "ids = torch.randn(4, 9, device='cuda').argmax(-1).tolist()\nprint([5][1 + ids[0]])\n",
            "list index out of range (train.py, line 3); maybe because of values that are not known without a GPU"
            ", read at train.py, line 2",
            id="a list",
        ),
        pytest.param(
            "x = torch.randn(4, device='cuda')\nn = x.cpu()\nassert n.sum() > 1\n",
            "read at train.py, line 3",
            id="moved",
        ),
        pytest.param(
            "x = torch.randn(4, device='cuda').sum().item()\n1 / (x - x)\n", "read at train.py, line 2", id="a number"
        ),
    ],
)
def test_an_error_after_reading_unknown_values_names_the_read(tmp_path, lines, message):
    with failing("raised", message):
        traced(tmp_path, "import torch\n" + lines)


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param("x.sum().item()\n{}[1]\n", id="a loss"),
        pytest.param("ids = torch.arange(3).cuda().tolist()\n{}[1]\n", id="known"),
        pytest.param("x.tolist()\nx.nothing\n", id="of another kind"),
    ],
)
def test_an_error_of_another_cause_names_no_read(tmp_path, lines):
    with pytest.raises(TraceError) as caught:
        traced(tmp_path, "import torch\nx = torch.randn(3).cuda()\n" + lines)
    assert "maybe" not in caught.value.message


@pytest.mark.parametrize(
    ("announcement", "message"),
    [
        pytest.param("Failed because of:", "Failed because of: KeyError: 'width' (train.py, line 2)", id="a colon"),
        pytest.param(
            "set HYDRA_FULL_ERROR=1 to see chained exception.",
            "exception.: KeyError: 'width' (train.py, line 2)",
            id="a chain",
        ),
        pytest.param("no such size", "RuntimeError: no such size (train.py, line 6)", id="no announcement"),
    ],
)
def test_an_error_that_announces_its_cause_names_it(tmp_path, announcement, message):
    lines = "def size():\n    return {}['width']\ntry:\n    size()\n"
    raised = f"except KeyError as error:\n    raise RuntimeError({announcement!r}) from error\n"
    with failing("raised", message):
        traced(tmp_path, lines + raised)


def test_an_announcement_without_a_cause_is_followed_by_the_next_line(tmp_path):
    with failing("raised", "RuntimeError: two errors: the first one (train.py, line 1)"):
        traced(tmp_path, "raise RuntimeError('two errors:\\n\\n  the first one\\nthe second one')\n")


def test_training_on_the_cpu_is_an_error(tmp_path):
    lines = """
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    model(torch.randn(4, 64)).sum().backward()
    optimizer.step()
"""
    with failing("no-cuda", "the script trains without putting anything on a GPU"):
        traced(tmp_path, lines)


@pytest.mark.parametrize(
    ("lines", "hint"),
    [
        pytest.param("def f(:", "correct it; is it for another Python than ", id="no Python"),
        pytest.param("input('go? ')", "a traced script has no input", id="reads a line"),
    ],
)
def test_the_traceback_of_an_unsupported_script_has_no_frames_of_the_tracer(tmp_path, lines, hint):
    with pytest.raises(TraceError) as caught:
        traced(tmp_path, lines)
    assert caught.value.hint.startswith(hint)
    log = (tmp_path / "log").read_text()
    assert re.findall(r'File "([^"]+)"', log) == [str(tmp_path / "train.py")], log


def test_tensors_of_several_devices_raise_where_a_gpu_raises(tmp_path):
    lines = """
def message(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
gpu, cpu, at = torch.rand(3, 8, device="cuda"), torch.rand(3, 8), torch.zeros(2, dtype=torch.int64, device="cuda")
assert "same device as the indexed tensor (cpu)" in message(lambda: cpu[at])
assert gpu[at.cpu()].shape == (2, 8)
assert "got mat2 is on cpu" in message(lambda: gpu @ cpu.T)
assert "found at least two devices, cuda:0 and cpu!" in message(lambda: cpu.add_(gpu))
layer = nn.LSTM(8, 4).cuda()
assert "hidden tensor at cpu" in message(lambda: layer(gpu, (torch.zeros(1, 4), torch.zeros(1, 4))))
heads = gpu.view(1, 1, 3, 8)
assert "key.device: cpu" in message(lambda: nn.functional.scaled_dot_product_attention(heads, heads.cpu(), heads))
assert (torch.tensor(2.0) * gpu).is_cuda  # a CPU scalar before a CUDA tensor
"""
    assert peak(trained(tmp_path, lines)) > 0
