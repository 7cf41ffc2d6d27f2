"""Which GPU `cuda` without an index means: tensors are allocated there."""

from __future__ import annotations

import platform

import pytest

from cotenant.estimators.replay_input import on_device
from traced_scripts import allocations, traced

torch = pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.device import libtorch_patch  # noqa: E402 - torch may be absent

CHECK = """
import threading
import torch

def check(wanted):
    assert torch.cuda.current_device() == wanted, (torch.cuda.current_device(), wanted)
    made = (torch.empty(1, device="cuda"), torch.empty(1).cuda(), torch.empty(1).to("cuda"), torch.cuda.FloatTensor(1))
    assert [tensor.device.index for tensor in made] == [wanted] * 4, (made, wanted)

there = torch.empty(1, device="cuda:1")
"""
STEP = """
torch.cuda.set_device(0)
model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(1, 4).cuda()).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("gpus", [2, 4])
@pytest.mark.parametrize(
    "lines",
    [
        pytest.param("with torch.cuda.device_of(there):\n    check(1)\ncheck(0)\n", id="device_of"),
        pytest.param("with torch.cuda.device_of(torch.ones(1)):\n    check(0)\n", id="device_of the CPU"),
        pytest.param(
            """
with torch.cuda.device(1):
    for nothing in (None, -1, "cuda", torch.device("cuda")):
        with torch.cuda.device(nothing):
            check(1)
    with torch.cuda.device_of(torch.empty(1, device="cuda:0")):
        check(0)
    torch.cuda.set_device(-1)
    check(1)
check(0)
""",
            id="device",
        ),
        pytest.param(
            "torch.cuda.set_device('cuda:1')\ncheck(1)\ntorch.cuda.set_device(0)\ncheck(0)\n", id="set_device"
        ),
        pytest.param(
            "with torch.device(1):\n    assert torch.empty(1).device == torch.device('cuda:1')\n    check(0)\n",
            id="torch.device",
        ),
        pytest.param(
            """
if hasattr(torch, "accelerator") and hasattr(torch.accelerator, "device_index"):
    with torch.accelerator.device_index(1):
        check(1)
    torch.accelerator.set_device_index(1)
    check(1)
    torch.accelerator.set_device_index(0)
check(0)
""",
            id="accelerator",
        ),
        pytest.param(
            """
stream = torch.cuda.Stream(device=1)
with torch.cuda.stream(stream):
    check(1)
    assert torch.cuda.current_stream() == stream != torch.cuda.current_stream(0)
    with torch.cuda.device(0):
        check(0)
        assert torch.cuda.Stream().device.index == torch.cuda.current_stream().device.index == 0
check(0)
assert torch.cuda.current_stream(1) == torch.cuda.default_stream(1) != stream
""",
            id="a stream of another GPU",
        ),
        pytest.param(
            """
errors = []
def worker(index):
    try:
        check(0)  # where every thread begins
        with torch.cuda.device(index):
            met.wait()
            for _ in range(20):
                check(index)
    except BaseException as error:
        errors.append(error)
met = threading.Barrier(torch.cuda.device_count())
threads = [threading.Thread(target=worker, args=(i,)) for i in range(torch.cuda.device_count())]
with torch.cuda.device(1):
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(1)
assert not errors, errors
""",
            id="threads",
        ),
        pytest.param(
            """
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        check(grad.device.index)
        return grad * 2
for index in range(torch.cuda.device_count()):
    Double.apply(torch.ones(2, device=f"cuda:{index}", requires_grad=True)).sum().backward()
check(0)
""",
            id="the thread of autograd for a GPU",
        ),
    ],
)
def test_tensors_are_allocated_on_the_current_gpu(tmp_path, lines, gpus):
    traced(tmp_path, CHECK + lines + STEP, gpus=gpus)


def test_threads_have_their_own_current_gpu(tmp_path):
    """As in copies of `parallel_apply`: each thread chooses the GPU of its input, and its module makes more there."""
    trace = traced(
        tmp_path,
        """
        import threading
        import torch
        from torch import nn
        from torch.nn.parallel import gather, replicate, scatter

        class Noisy(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(256, 256)
            def forward(self, x):
                return self.layer(x) + torch.zeros(x.shape[0], 256, device="cuda")

        def worker(module, x, outputs, index):
            with torch.cuda.device_of(x):
                outputs[index] = module(x)

        model = Noisy().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            inputs = scatter(torch.randn(64, 256, device="cuda"), range(4))
            outputs = [None] * 4
            threads = [
                threading.Thread(target=worker, args=(module, x, outputs, index))
                for index, (module, x) in enumerate(zip(replicate(model, range(4)), inputs))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            gather(outputs, 0).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
        gpus=4,
    )
    part = 16 * 256 * 4
    for index in range(1, 4):
        # At each step the input's part (the first before any forward pass), the product, the zeros, and their sum.
        assert allocations(on_device(trace, index), "forward").count(part) == 3 * 4 - 1


def test_storages_have_the_current_stream_of_their_gpu(tmp_path):
    trace = traced(
        tmp_path,
        """
        import torch
        with torch.cuda.stream(torch.cuda.Stream(device="cuda:1")):
            keep = torch.empty(1000, device="cuda:0"), torch.empty(2000, device="cuda:1")
        after = torch.empty(3000, device="cuda:1")
        """
        + "\n".join("        " + line for line in STEP.splitlines()),
        gpus=2,
    )
    streams = {event.bytes: event.stream > 0 for event in trace.events if event.action == "alloc"}
    assert (streams[4000], streams[8000], streams[12000]) == (False, True, False)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_patched_machine_code_fits_its_slot(machine, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    codes = libtorch_patch._machine_code(127, 1023, 2**63, 2**63)
    assert {len(code) <= libtorch_patch._FUNCTION_BYTES for code in codes.values()} == {True}
    assert len(codes) * libtorch_patch._FUNCTION_BYTES <= 4096
