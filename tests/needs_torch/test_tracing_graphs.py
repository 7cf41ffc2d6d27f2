"""CUDA graphs, TorchScript, pipeline parallelism, and training in several parts."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from cotenant.allocator import parse_options, replay, rules_for
from traced_scripts import allocations, by_category, failing, peak, traced

torch = pytest.importorskip("torch", reason="tracing needs torch")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
HEAD = "import torch\nfrom torch import nn\n"
KNOWN = {"options": parse_options("", "2.9.0"), "rules": rules_for("2.9.0")}


def streams(trace, words="alloc"):
    return [event.stream for event in trace.events if event.action == words]


def test_a_captured_step_allocates_from_a_private_pool(tmp_path):
    small = ("--width", "64", "--batch-size", "32")
    trace = traced(tmp_path, (EXAMPLES / "cuda_graph.py").read_text(), *small)
    assert trace.header.steps == 4  # three to warm up, one in the capture
    assert "private memory pool is included" in trace.warnings[0]
    found = streams(trace)
    captured = [event for event in trace.events if event.stream < 0 and event.action == "alloc"]
    assert found.index(captured[0].stream) > 0
    assert max(found) > 0
    assert {event.bytes for event in captured} >= {32 * 256 * 4, 64 * 256 * 4}
    assert [event.action for event in trace.events].count("empty_cache") == 1


CAPTURED_STEP = """
model, x = nn.Linear(64, 64).cuda(), torch.ones(8, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
with torch.cuda.stream(torch.cuda.Stream()):
    for _ in range(3):
        step()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
for turn in range({replays}):
    graph.replay()
model(torch.ones(5000, 64).cuda())
"""


@pytest.mark.parametrize(("replays", "is_reached"), [(20, True), (10**9, False)])
def test_what_follows_the_replays_of_a_captured_step_is_traced(tmp_path, replays, is_reached):
    trace = traced(tmp_path, HEAD + CAPTURED_STEP.format(replays=replays))
    assert trace.header.steps == 4
    assert (4 * 5000 * 64 in allocations(trace)) is is_reached


def captured_bytes(trace):
    return [event.bytes for event in trace.events if event.action == "alloc" and event.stream < 0]


MEMORY_POOL = """
one = torch.ones(1, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([one], lr=0.1)
pool, other = torch.cuda.MemPool(), torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    with torch.cuda.use_mem_pool(other):
        buffer = torch.empty(1 << 20, device="cuda")
    first = torch.empty(1 << 20, device="cuda")
    del first
    torch.cuda.empty_cache()
    again = torch.empty(1 << 20, device="cuda")
    twice = (again * one).sum()
    twice.backward()
after = torch.empty(1 << 20, device="cuda")
optimizer.step()
"""


def test_tensors_of_a_memory_pool_have_segments_of_their_own(tmp_path):
    """What another thread allocates, as a backward pass does, is not the pool's."""
    trace = traced(tmp_path, HEAD + MEMORY_POOL)
    large = [event for event in trace.events if event.action == "alloc" and event.bytes == 4 << 20]
    assert [event.stream for event in large] == [-2, -1, -1, -1, 0, 0]
    memory = [event for event in trace.events if event.action != "op"]
    assert replay(memory, **KNOWN).peak_reserved_bytes == (2 + 2 + 3 * 20) << 20
    gradients = [event for event in trace.events if event.action == "alloc" and event.category == "gradient"]
    assert gradients
    assert {event.stream for event in gradients} == {0}


@pytest.mark.skipif(VERSION >= (2, 14), reason="torch 2.14 makes them with the first random operator")
def test_a_capture_has_a_seed_and_an_offset_outside_of_its_pool(tmp_path):
    small = ("--width", "64", "--batch-size", "32")
    trace = traced(tmp_path, (EXAMPLES / "cuda_graph.py").read_text(), *small)
    made = [event for event in trace.events if event.action == "alloc"]
    begin = next(place for place, event in enumerate(made) if event.stream < 0)
    assert [(event.bytes, event.stream) for event in made[begin - 2 : begin]] == 2 * [(8, 0)]


DRAWS = """
ones = torch.ones(1 << 18, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([ones], lr=0.1)
FIRST
def capture():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        return graph, ones * 2, torch.rand(1 << 10, device="cuda"), torch.rand(1 << 11, device="cuda")
kept = [capture(), capture()]
ones.sum().backward()
optimizer.step()
"""


@pytest.mark.parametrize("late", [False, True])
def test_seeds_come_with_the_capture_or_with_its_first_random_operator(tmp_path, late):
    first = f"from cotenant.tracing.device import cuda_graphs\ncuda_graphs.SEEDS_WITH_FIRST_DRAW = {late}"
    found = captured_bytes(traced(tmp_path, HEAD + DRAWS.replace("FIRST", first)))
    early, drawn = [1 << 20, 1 << 12, 1 << 13], [1 << 20, 1 << 12, 8, 8, 1 << 13]
    assert found == 2 * (drawn if late else early)


CHOSEN = """
a = torch.ones(64, 64, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([a], lr=0.1)
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    before = a.detach() @ a.detach()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, stream=stream):
    inside = a.detach() @ a.detach()
other = torch.cuda.CUDAGraph()
with torch.cuda.graph(other):
    later = a.detach() @ a.detach()
a.sum().backward()
optimizer.step()
"""


def test_a_capture_on_a_chosen_stream_names_it(tmp_path):
    """On a null H100 the first capture takes no workspace of cuBLAS, since the stream has one; the second does."""
    trace = traced(tmp_path, HEAD + CHOSEN)
    calls = [(event.stream, trace.ops[event.op_id]) for event in trace.events if event.action == "op"]
    products = [(stream, call.params.get("capture_stream")) for stream, call in calls if call.kind == "gemm"]
    chosen = products[0][0]
    assert chosen > 0
    assert products == [(chosen, None), (-1, chosen), (-2, None)]


POOLS = """
one = torch.ones(1, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([one], lr=0.1)
def capture(pool=None):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        return graph, torch.empty(1 << 20, device="cuda")
kept = []
POOLS
one.sum().backward()
optimizer.step()
"""


@pytest.mark.parametrize(
    ("pools", "segments"),
    [
        ("kept.append(capture())", 1),
        ("kept += [capture(), capture()]", 2),
        ("kept.append(capture()); kept.append(capture(kept[0][0].pool()))", 1),
        ("pool = torch.cuda.graph_pool_handle(); kept += [capture(pool), capture(pool), capture()]", 2),
    ],
)
def test_each_pool_has_a_segment_of_its_own(tmp_path, pools, segments):
    """On a null A100 each new pool reserves 20 MiB for 4 MiB of outputs."""
    trace = traced(tmp_path, HEAD + POOLS.replace("POOLS", pools))
    reserved = replay(trace.events, **KNOWN).peak_reserved_bytes
    assert reserved == (2 + 20 * segments) << 20


@pytest.mark.skipif(VERSION >= (2, 14), reason="torch 2.14 makes them with the first random operator")
@pytest.mark.parametrize(("graphs", "segments"), [(2, 1), (3, 2)])
def test_seeds_are_outside_of_the_pool(tmp_path, graphs, segments):
    """On a null A100 they are beside the small tensors of the default stream; the pool has captured ones alone."""
    captures = "pool = torch.cuda.graph_pool_handle(); kept += [capture(pool) for _ in range(GRAPHS)]"
    script = POOLS.replace("POOLS", captures.replace("GRAPHS", str(graphs))).replace("1 << 20", "1 << 18")
    reserved = replay(traced(tmp_path, HEAD + script).events, **KNOWN).peak_reserved_bytes
    assert reserved == (2 + 2 * segments) << 20


def test_graphed_callables_share_a_pool_and_continue_training(tmp_path):
    small = ("--what", "model", "--width", "64", "--batch-size", "32")
    trace = traced(tmp_path, (EXAMPLES / "cuda_graph.py").read_text(), *small)
    assert trace.header.steps == 3
    assert len({stream for stream in streams(trace) if stream < 0}) == 1
    after = [stream for stream in streams(trace) if stream >= 0]
    assert after[-1] == 0
    assert allocations(trace, category="optimizer state")


@pytest.mark.parametrize(("leave", "steps"), [("break", 5), ("pass", 14)])
def test_steps_on_a_side_stream_are_waited_for_up_to_a_limit(tmp_path, leave, steps):
    source = (
        HEAD
        + f"""
model = nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.cuda.stream(torch.cuda.Stream()):
    for step in range(1000):
        model(torch.ones(2, 8, device="cuda")).sum().backward()
        optimizer.step()
        if step == 4:
            {leave}
"""
    )
    assert traced(tmp_path, source).header.steps == steps


def test_functions_for_torchscript_run_as_written(tmp_path):
    source = (
        HEAD
        + """
@torch.jit.script
def squared(x):
    return x * x
class Cell(torch.jit.ScriptModule):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16, 16))
    @torch.jit.script_method
    def forward(self, x):
        for _ in range(3):
            x = torch.tanh(x @ self.weight)
        return x
model = nn.Sequential(Cell(), torch.jit.script(nn.Linear(16, 16)), nn.Dropout(0.5)).cuda()
traced = torch.jit.trace(nn.Linear(16, 16).cuda(), torch.ones(1, 16).cuda())
optimizer = torch.optim.SGD([*model.parameters(), *traced.parameters()], lr=0.1, momentum=0.9)
for _ in range(3):
    squared(traced(model(torch.ones(4, 16, device="cuda")))).sum().backward()
    optimizer.step()
torch.jit.save(torch.jit.freeze(model), "model.pt")
model[0].save("cell.pt")
squared.save("squared.pt")
"""
    )
    trace = traced(tmp_path, source)
    assert not trace.partial
    assert by_category(trace)["optimizer state"] == 4 * (16 * 16 + 2 * (16 * 16 + 16))
    assert trace.warnings == (
        "TorchScript was ignored: the estimate is for the eager model; scripted code can need more or less",
    )


# -- pipelines ------------------------------------------------------------------------------------------------------

PIPELINE = """
import os, sys
import torch.distributed as dist
pipelining = __import__("torch.distributed.pipelining", fromlist=["*"])
dist.init_process_group("nccl")
rank, stages, rows = dist.get_rank(), dist.get_world_size(), 4096
torch.cuda.set_device(rank)
layers = [layer for _ in range(8) for layer in (nn.Linear(16, 16, bias=False), nn.Tanh())]
model = nn.Sequential(*layers).cuda()
given = {"input_args": (torch.zeros(rows, 16, device="cuda"),)} if "shapes" in sys.argv else {}
stage = pipelining.PipelineStage(model, rank, stages, torch.device("cuda", rank), **given)
schedule = getattr(pipelining, sys.argv[1])(stage, 8, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    x = torch.zeros(8 * rows, 16, device="cuda")
    schedule.step(*([x] if rank == 0 else []), **({"target": x} if rank == stages - 1 else {}))
    optimizer.step()
    optimizer.zero_grad()
"""


def stage(folder, monkeypatch, schedule, rank, *args):
    pytest.importorskip("torch.distributed.pipelining", reason="needs a torch with pipelines")
    for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", 4)):
        monkeypatch.setenv(name, str(value))
    return traced(folder, HEAD + PIPELINE, schedule, *args, gpus=4)


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_pipeline_stage_holds_the_activations_of_its_microbatches_in_flight(tmp_path, monkeypatch, rank):
    """GPipe has all 8 microbatches between forward and backward, 1F1B as many as there are stages from here on."""
    whole = peak(stage(tmp_path, monkeypatch, "ScheduleGPipe", rank, "shapes"))
    taking_turns = peak(stage(tmp_path, monkeypatch, "Schedule1F1B", rank, "shapes"))
    for_one = 8 * 4096 * 16 * 4  # what eight layers keep of a microbatch
    assert whole - taking_turns == pytest.approx((8 - (4 - rank)) * for_one, rel=0.15)


def test_later_pipeline_stages_need_shapes_and_the_first_does_not(tmp_path, monkeypatch):
    trace = stage(tmp_path, monkeypatch, "Schedule1F1B", 0)
    assert (trace.partial, trace.header.steps) == (False, 3)
    assert any("stage 0 of 4 of a pipeline is traced" in warning for warning in trace.warnings)
    with failing("unsupported", "stage 2 of a pipeline gets the shapes of its inputs from stage 1"):
        stage(tmp_path, monkeypatch, "Schedule1F1B", 2)


def test_a_pipeline_of_decoder_layers_is_traced(tmp_path):
    small = ("--width", "64", "--layers", "1", "--length", "16", "--batch-size", "8", "--microbatches", "4")
    launcher = ["torchrun", "--nproc-per-node", "2"]
    trace = traced(tmp_path, (EXAMPLES / "pipeline.py").read_text(), *small, launcher=launcher)
    assert (trace.partial, trace.header.steps, trace.header.processes) == (False, 3, 2)


# -- training in several parts ---------------------------------------------------------------------------------------

TWICE = """
def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    {loop}
        model(torch.ones(2, 8, device="cuda")).sum().backward()
        optimizer.step()
train(nn.Linear(8, 8).cuda())
{more}
"""
UNSEEN = "the training at train.py, line 10, runs only after the traced part; its memory is not included"


@pytest.mark.parametrize(
    ("more", "warnings"),
    [
        pytest.param("", (), id="once"),
        pytest.param("train(nn.Linear(8, 800).cuda())", (UNSEEN,), id="twice"),
        pytest.param(
            "if True:\n    nn.Linear(8, 800)(torch.ones(2, 8)).cuda().sum().backward()", (UNSEEN,), id="by hand"
        ),
        pytest.param("def test(model):\n    train(model)", (), id="never called"),
        pytest.param("nn.Linear(8, 8).train()", (), id="a mode of modules"),
    ],
)
def test_later_training_adds_a_warning_where_the_loop_before_cannot_be_left(tmp_path, more, warnings):
    assert traced(tmp_path, HEAD + TWICE.format(loop="while model:", more=more)).warnings == warnings
    trace = traced(tmp_path, HEAD + TWICE.format(loop="for _ in range(500):", more=more))
    assert (trace.warnings, 4 * 2 * 800 in allocations(trace)) == ((), bool(warnings))


def test_training_of_a_student_after_its_teacher_is_traced(tmp_path):
    source = (
        HEAD
        + """
from torch.utils.data import DataLoader
def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x in DataLoader(torch.ones(100, 8), 4):
        model(x.cuda()).sum().backward()
        optimizer.step()
train(nn.Linear(8, 8).cuda())
train(nn.Linear(8, 8000).cuda())
for fold in range(3):
    train(nn.Linear(8, 8000).cuda())
print("all folds")
"""
    )
    trace = traced(tmp_path, source)
    assert by_category(trace)["optimizer state"] == 4 * (9 * 8 + 4 * 9 * 8000)
    assert "all folds" in (tmp_path / "log").read_text()


# -- the private pool in the allocator ------------------------------------------------------------------------------


GRADIENTS = """
import sys
sys.setswitchinterval(60)  # autograd's thread gets no turn while the script computes
layer = nn.Linear(64, 64).cuda()
x = torch.randn(8, 64, device="cuda")
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
gradients = torch.autograd.grad(layer(x).sum(), list(layer.parameters()))
del gradients
torch.cuda.empty_cache()
layer(x).sum().backward()
optimizer.step()
"""


def test_gradients_that_a_script_drops_are_free_at_once(tmp_path):
    events = traced(tmp_path, HEAD + GRADIENTS).events
    emptied = next(place for place, event in enumerate(events) if event.action == "empty_cache")
    live = {event.storage_id for event in events[:emptied] if event.action == "alloc" and event.category != "workspace"}
    live -= {event.storage_id for event in events[:emptied] if event.action == "free"}
    assert len(live) == 3  # weight, bias, input


class CountedWaits:
    """In place of autograd's threads."""

    def __init__(self):
        self.waits = []

    def wait(self, gradients):
        self.waits.append(gradients)

    def wait_for_all(self):
        self.waits.append("all")


@pytest.mark.parametrize(("result", "waits"), [((1, 2), [(1, 2)]), (None, [()]), (ValueError(), ["all"])])
def test_a_backward_pass_waits_for_threads_also_where_it_fails(result, waits):
    """Autograd's thread may hold the last reference to an error, and so to all tensors of the frames that it passed."""
    from cotenant.tracing.training.autograd_thread import waiting

    def backward():
        if isinstance(result, Exception):
            raise result
        return result

    threads = CountedWaits()
    with contextlib.suppress(ValueError):
        assert waiting(threads, backward)() == result
    assert threads.waits == waits


def test_empty_cache_leaves_a_private_pool(tmp_path):
    source = (
        HEAD
        + """
model = nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    torch.ones(30 * 2**20, dtype=torch.uint8, device="cuda").amax()
torch.cuda.empty_cache()
held = torch.ones(30 * 2**20, dtype=torch.uint8, device="cuda")
for _ in range(3):
    model(torch.ones(2, 8, device="cuda")).sum().backward()
    optimizer.step()
"""
    )
    trace = traced(tmp_path, source)
    events = [event for event in trace.events if event.action != "op"]
    assert replay(events, **KNOWN).peak_reserved_bytes >= 60 * 2**20
    shared = [event._replace(stream=0) for event in events]
    assert replay(shared, **KNOWN).peak_reserved_bytes < 60 * 2**20
