"""Traces of several GPUs match calculations by hand for each GPU."""

from __future__ import annotations

import textwrap

import pytest

import cotenant
from cotenant.core.trace import MemoryEvent, MemoryTrace, TraceHeader
from cotenant.estimators.replay_input import devices_of, on_device
from traced_scripts import allocations, by_category, failing, live_bytes, peak, traced

torch = pytest.importorskip("torch", reason="tracing needs torch")

MiB = 2**20
TORCHRUN = ["torchrun", "--nproc-per-node"]
LAYERS = """
import os, torch, torch.distributed as dist
from torch import nn
{setup}
model = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(4)]).cuda()  # 1 MiB each
{wrap}
optimizer = {optimizer}
for _ in range(3):
    model(torch.randn(4, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
GROUP = "dist.init_process_group('nccl'); torch.cuda.set_device(int(os.environ['LOCAL_RANK']))"
ADAM = "torch.optim.AdamW(model.parameters())"


def layers(folder, *, wrap="", setup=GROUP, optimizer=ADAM, processes=2):
    source = LAYERS.format(setup=setup, wrap=wrap, optimizer=optimizer)
    return traced(folder, source, launcher=[*TORCHRUN, str(processes)])


def live_at_peak(trace: MemoryTrace, device: int) -> int:
    return peak(on_device(trace, device))


def test_layers_allocate_on_their_own_gpus(tmp_path):
    trace = traced(
        tmp_path,
        """
        import torch
        from torch import nn
        class Halves(nn.Module):
            def __init__(self):
                super().__init__()
                self.first = nn.Linear(512, 1024, bias=False).to("cuda:0")
                self.second = nn.Linear(1024, 512, bias=False).to("cuda:1")
            def forward(self, x):
                hidden = self.first(x.to("cuda:0")).to("cuda:1")
                return self.second(hidden) + hidden.relu().sum() + hidden.mean()  # three gradients meet there
        model = Halves()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.randn(4, 512)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
        gpus=2,
    )
    assert devices_of(trace) == (0, 1)
    for index in (0, 1):
        assert 2 * 2 * MiB <= live_at_peak(trace, index) < 2 * 2 * MiB + 2**18  # a weight and its gradient
    ops = {event.device for event in trace.events if event.action == "op"}
    assert ops == {0, 1}


def test_data_parallel_gathers_on_the_first_gpu(tmp_path):
    trace = traced(
        tmp_path,
        """
        import torch
        from torch import nn
        model = nn.DataParallel(nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 256))).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            out = model(torch.randn(64, 512).cuda())
            assert out.shape == (64, 256) and out.device.index == 0
            out.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
        gpus=2,
    )
    weights = 4 * (512 * 512 + 512 + 512 * 256 + 256)
    on_second = on_device(trace, 1)
    assert allocations(on_second, "forward").count(weights) == 3  # all of them, in one piece, at each step
    assert "optimizer state" not in by_category(on_second)
    assert by_category(on_device(trace, 0))["optimizer state"] == 2 * weights
    for width in (512, 256):
        assert allocations(on_second, "forward").count(32 * width * 4) >= 3  # half of the batch


def test_a_gpu_index_beyond_the_count_is_an_error(tmp_path):
    with failing("raised", "the script uses `cuda:1` and has 1 GPU; give it more with `--gpus 2`"):
        traced(tmp_path, "import torch\ntorch.ones(3, device='cuda:1')\n")


def test_memory_queries_are_per_gpu(tmp_path):
    traced(
        tmp_path,
        """
        import torch
        keep = torch.empty(1000, device="cuda:1")
        assert (torch.cuda.memory_allocated(0), torch.cuda.memory_allocated("cuda:1")) == (0, 4096)
        with torch.cuda.device(1):
            assert torch.cuda.memory_allocated() == torch.cuda.max_memory_allocated() == 4096
            free, total = torch.cuda.mem_get_info()
            assert total - free == 4096
        model = torch.nn.Linear(2, 2).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 2).cuda()).sum().backward()
        optimizer.step()
        """,
        gpus=2,
    )


def test_a_gpu_without_a_number_is_the_current_one(tmp_path):
    traced(
        tmp_path,
        """
        import torch
        from torch import nn
        torch.cuda.set_device(1)
        model = nn.Linear(4, 4).cuda()
        found = [torch.ones(2).cuda(), torch.ones(2).to("cuda"), torch.ones(2, device="cuda"), model.weight]
        assert [tensor.device.index for tensor in found] == [1, 1, 1, 1]
        with torch.cuda.device(2):
            assert torch.ones(2).cuda().device.index == nn.Linear(2, 2).to("cuda").weight.device.index == 2
            assert torch.ones(2).cuda(0).device.index == torch.ones(2).to("cuda:0").device.index == 0
        assert torch.ones(2).cuda().device.index == 1
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 4).cuda()).sum().backward()
        assert model.weight.grad.device.index == 1
        optimizer.step()
        """,
        gpus=3,
    )


def test_ddp_allocates_buckets_beside_the_gradients(tmp_path):
    plain = layers(tmp_path, setup="")
    wrapped = layers(tmp_path, wrap="model = nn.parallel.DistributedDataParallel(model, device_ids=[0])")
    assert wrapped.header.processes == 2
    assert 4 * MiB <= peak(wrapped) - peak(plain) < 4.1 * MiB


def test_a_copy_of_ddp_has_buckets_of_its_own(tmp_path):
    wrap = "model = nn.parallel.DistributedDataParallel(model, device_ids=[0])"
    plain = layers(tmp_path, wrap=wrap)
    copied = layers(
        tmp_path, wrap=f"{wrap}\nimport copy\naverage = copy.deepcopy(model)\naverage(torch.zeros(2, 512).cuda())"
    )
    assert peak(copied) - peak(plain) == pytest.approx(8 * MiB, abs=2**17)  # parameters, and as many in buckets


@pytest.mark.parametrize(("views", "buckets_mib"), [(False, 4), (True, 4)])
def test_ddp_gradients_can_be_views_of_buckets(tmp_path, views, buckets_mib):
    wrap = f"model = nn.parallel.DistributedDataParallel(model, device_ids=[0], gradient_as_bucket_view={views})"
    trace = layers(tmp_path, wrap=wrap, optimizer="torch.optim.SGD(model.parameters(), lr=0.1)")
    gradients = 0 if views else 4
    assert peak(trace, "step") == pytest.approx((4 + buckets_mib + gradients) * MiB, abs=2**17)
    after = [total for event, total in live_bytes(trace) if event.phase == "forward" and event.action == "free"]
    assert min(after) == pytest.approx((4 + buckets_mib) * MiB, abs=2**17)  # buckets stay where gradients go


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_fsdp_shards_weights_gradients_and_states(tmp_path, processes):
    pytest.importorskip("torch.distributed.tensor", reason="needs a torch with DTensor")
    wrap = """
from torch.distributed.fsdp import fully_shard
for layer in model:
    fully_shard(layer)
fully_shard(model)
"""
    trace = layers(tmp_path, wrap=wrap, processes=processes)
    shard = 4 * MiB // processes
    # Weights, gradients, two states, and the square roots that AdamW takes of one of them; layers in use are gathered.
    assert peak(trace, "step") == pytest.approx(5 * shard, abs=2**15)
    assert by_category(trace)["optimizer state"] == 2 * shard
    gathered = [nbytes for nbytes in allocations(trace, "forward") if nbytes == MiB]
    assert len(gathered) >= 3 * 4 if processes > 1 else True


def test_zero_1_shards_the_states_only(tmp_path):
    trace = layers(
        tmp_path,
        setup=GROUP + "; from torch.distributed.optim import ZeroRedundancyOptimizer as Zero",
        wrap="model = nn.parallel.DistributedDataParallel(model, device_ids=[0])",
        optimizer="Zero(model.parameters(), optimizer_class=torch.optim.AdamW)",
    )
    assert by_category(trace)["optimizer state"] == 2 * (4 * MiB // 2)


def test_sharded_states_are_gathered_for_a_checkpoint(tmp_path):
    source = LAYERS.format(
        setup=GROUP + "; from torch.distributed.optim import ZeroRedundancyOptimizer as Zero",
        wrap="model = nn.parallel.DistributedDataParallel(model, device_ids=[0])",
        optimizer="Zero(model.parameters(), optimizer_class=torch.optim.AdamW)",
    )
    source += """
    optimizer.consolidate_state_dict(to=0)
    states = optimizer.state_dict()["state"]
    assert sorted(states) == [0, 1, 2, 3] and all(not state["exp_avg"].is_cuda for state in states.values())
"""
    trace = traced(tmp_path, source, launcher=[*TORCHRUN, "2"])
    assert not any("raised" in warning for warning in trace.warnings)
    assert 2 * (4 * MiB // 2) + 2 * 4 in allocations(trace)  # two states of half of the weights, and two counts


BY_HAND = """
import os, sys, torch, torch.multiprocessing as mp
from torch import nn
{head}
def produce(queue):
    queue.put(os.getpid())
def place():
    return {device}
def train(rank, queue):
    model = nn.Linear(8, 8).to(place())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert rank == 0 and queue.get() == "filled"
    model(torch.ones(2, 8).to(place())).sum().backward()
    optimizer.step()
class Worker(mp.get_context("fork").Process):
    def __init__(self, rank, queue):
        super().__init__()
        self.rank, self.queue = rank, queue
    def run(self):
        train(self.rank, self.queue)
if __name__ == "__main__":
    context = mp.get_context("fork")
    real = context.SimpleQueue()
    producer = context.Process(target=produce, args=(real,))
    producer.start()
    assert real.get() == producer.pid != os.getpid()
    producer.join()
    queue = context.Queue()
    workers = [{worker} for rank in range(2)]
    for worker in workers:
        worker.start()
    queue.put("filled")
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0 and not worker.is_alive()
"""


@pytest.mark.parametrize(
    ("head", "device", "worker"),
    [
        pytest.param("", "'cuda'", "context.Process(target=train, args=(rank, queue))", id="named"),
        pytest.param("chosen = torch.device('cuda')", "chosen", "Worker(rank, queue)", id="a class"),
    ],
)
def test_processes_started_by_hand_are_traced_as_one(tmp_path, head, device, worker):
    trace = traced(tmp_path, BY_HAND.format(head=head, device=device, worker=worker))
    assert (trace.header.steps, trace.partial) == (1, False)
    assert trace.warnings == ("of the processes that the script starts for the GPU, only the first was traced",)


@pytest.mark.parametrize("start", ["spawn", "start_processes"])
def test_spawned_processes_are_traced_as_one(tmp_path, start):
    trace = traced(
        tmp_path,
        """
        import os, torch, torch.distributed as dist, torch.multiprocessing as mp
        def work(rank, size):
            os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="1")
            dist.init_process_group("nccl", rank=rank, world_size=size)
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).to(rank), device_ids=[rank])
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                model(torch.randn(2, 8).to(rank)).sum().backward()
                optimizer.step()
        if __name__ == "__main__":
            mp.START(work, args=(torch.cuda.device_count(),), nprocs=torch.cuda.device_count())
        """.replace("START", start),
        gpus=4,
    )
    assert (trace.header.processes, trace.header.steps, trace.partial) == (4, 3, False)


CONFIGURATION = """
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 3, zero3_init_flag: true}
mixed_precision: bf16
num_machines: 1
num_processes: 2
"""
READS_CONFIGURATION = """
import os, torch
assert os.environ["ACCELERATE_USE_DEEPSPEED"] == "true" and os.environ["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "3"
assert os.environ["ACCELERATE_MIXED_PRECISION"] == "bf16" and os.environ["WORLD_SIZE"] == "2"
"""
STEPS = """
import torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(2, 8).cuda()).sum().backward()
    optimizer.step()
"""


def test_accelerate_uses_deepspeed_where_its_file_says_so(tmp_path):
    pytest.importorskip("accelerate", reason="needs accelerate")
    (tmp_path / "zero3.yaml").write_text(CONFIGURATION)
    launcher = ["accelerate", "--config_file", str(tmp_path / "zero3.yaml")]
    trace = traced(tmp_path, READS_CONFIGURATION + STEPS, launcher=launcher)
    assert trace.header.processes == 2
    assert not any("not understood" in warning for warning in trace.warnings)


def test_a_configuration_that_accelerate_cannot_use_is_warned_about(tmp_path):
    pytest.importorskip("accelerate", reason="needs accelerate")
    trace = traced(tmp_path, STEPS, launcher=["accelerate", "--config_file", "gone.yaml"])
    assert any("its configuration was not used" in warning for warning in trace.warnings)


@pytest.mark.parametrize("launcher_flags", [("--multi_gpu",), ()])  # without the flag it counts GPUs
def test_accelerate_gets_the_options_of_its_launcher(tmp_path, launcher_flags):
    pytest.importorskip("accelerate", reason="needs accelerate")
    trace = traced(
        tmp_path,
        """
        import torch
        from accelerate import Accelerator
        accelerator = Accelerator()
        assert (accelerator.num_processes, accelerator.mixed_precision) == (2, "bf16")
        model = torch.nn.Linear(8, 8)
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
        for _ in range(3):
            accelerator.backward(model(torch.randn(2, 8, device=accelerator.device)).float().sum())
            optimizer.step()
        """,
        launcher=["accelerate", *launcher_flags, "--num_processes=2", "--mixed_precision", "bf16"],
    )
    assert trace.header.processes == 2


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_an_estimate_has_a_peak_per_gpu():
    def step():
        first = torch.nn.Linear(512, 512, bias=False).to("cuda:0")
        second = torch.nn.Linear(512, 2048, bias=False).to("cuda:1")
        optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
        second(first(torch.ones(4, 512, device="cuda:0")).to("cuda:1")).sum().backward()
        optimizer.step()

    estimate = cotenant.estimate(step, gpus=2)
    first, second = estimate.per_gpu
    assert (first.index, second.index) == (0, 1)
    assert second.peak_allocated_bytes - first.peak_allocated_bytes == pytest.approx(2 * 3 * MiB, rel=0.1)
    assert estimate.bound_bytes == max(first.bound_bytes, second.bound_bytes)


def an_event(action, number, device, nbytes=0):
    return MemoryEvent(action, number, nbytes, "temporary" if action == "alloc" else "", "load", "", 0, device)


def test_a_trace_is_split_by_gpu():
    trace = MemoryTrace(
        events=(
            an_event("alloc", 0, 0, 10),
            an_event("alloc", 1, 1, 20),
            an_event("empty_cache", -1, 0),
            an_event("free", 1, 1),
        ),
        ops=(),
        header=TraceHeader(torch_version="2.13.0"),
    )
    second = on_device(trace, 1)
    assert [(event.action, event.device) for event in second.events] == [("alloc", 0), ("empty_cache", 0), ("free", 0)]
    assert [event.action for event in on_device(trace, 0).events] == ["alloc", "empty_cache"]


def test_an_error_of_a_started_process_that_the_script_drops_is_told(tmp_path):
    source = """
    import torch.multiprocessing as mp

    def work(rank):
        torch.nn.Linear(2, 2).cuda(rank)
        raise ValueError("no such rate: 44,100")

    try:
        mp.spawn(work, nprocs=2, join=True)
    except Exception:
        print("stopped")
    """
    with failing("raised", "ValueError: no such rate: 44,100"):
        traced(tmp_path, f"import torch\n{textwrap.dedent(source)}")
