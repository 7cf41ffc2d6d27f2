"""Large reads from the GPU are zero, a large copy writes nothing into its target, and what is made like a tensor on the
GPU may be elsewhere."""

from __future__ import annotations

import pytest

from traced_scripts import traced

torch = pytest.importorskip("torch", reason="tracing needs torch")

STEP = """
import torch
model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    for _ in range(3):
        model(torch.ones(1, 4).cuda()).sum().backward()
        optimizer.step()
MANY = 2 << 20
def dirty():
    # Once a large block was given back, the system's allocator serves such sizes from memory that was used.
    big = torch.empty(7 << 20, dtype=torch.uint8)
    del big
    used = [torch.full((MANY + i,), 7, dtype=torch.uint8) for i in range(4)]
    del used
"""


@pytest.mark.parametrize("dtype", ["float32", "uint8", "bool", "bfloat16"])
def test_a_large_read_is_zero(tmp_path, dtype):
    traced(
        tmp_path,
        f"""{STEP}
unknown = (torch.randn(MANY // 64, 64, device="cuda") + model.weight.sum()).to(torch.{dtype})
for _ in range(4):
    dirty()
    read = unknown.cpu()
    assert read.shape == unknown.shape and read.is_contiguous() and read.dtype == torch.{dtype}
    assert not read.any(), read
    read[0] = 1  # it may be written to
    assert read.clone().t().contiguous().any()
step()
""",
    )


def test_a_read_preserves_strides(tmp_path):
    traced(
        tmp_path,
        f"""{STEP}
unknown = (torch.randn(2048, 1024, device="cuda") + model.weight.sum()).t()
dirty()
read = unknown.cpu()
assert read.stride() == (1, 1024) and not read.any()
torch.save(read, "read.pt")
assert not torch.load("read.pt").any()
step()
""",
    )


def test_a_large_copy_does_not_write_the_target(tmp_path):
    traced(
        tmp_path,
        f"""{STEP}
unknown = torch.randn(MANY, device="cuda") + model.weight.sum()
target = torch.full((MANY,), 3.0)
target.copy_(unknown)
assert target.eq(3).all()
few = torch.full((10,), 3.0)
few.copy_(unknown[:10])
assert not few.any()
step()
""",
    )


@pytest.mark.parametrize("number", ["7", "True", "2.5"])
def test_a_number_is_copied_into_a_tensor_on_the_gpu(tmp_path, number):
    """As a tensor on the CPU: one that is not contiguous gets it by way of another."""
    trace = traced(
        tmp_path,
        f"""{STEP}
one, rows, columns = (torch.zeros(size, device="cuda") for size in ((), (1024, 1024), (512, 1024)))
one.copy_({number})
rows.copy_({number})
columns.t().copy_({number})
assert one.item() == {number}
step()
""",
    )
    assert [event.bytes for event in trace.events if event.bytes >= 1 << 20] == [4 << 20, 2 << 20, 2 << 20]


def test_what_is_made_elsewhere_like_a_tensor_on_the_gpu_takes_no_gpu_memory(tmp_path):
    trace = traced(
        tmp_path,
        f"""{STEP}
x = torch.empty(1 << 20, device="cuda")
kept = [
    torch.empty_like(x, device="cpu", pin_memory=True), torch.zeros_like(x, device="meta"), x.to("meta"),
    x.new_ones(1 << 20, device="cpu"), torch.full_like(x, 7, dtype=torch.int16, device=torch.device("cpu")),
    torch.rand_like(x, device="cpu"), torch.nn.Linear(1024, 1024).cuda().to("meta").weight,
    torch.nn.Linear(1024, 1024).cuda().to_empty(device="cpu").weight, x.new_zeros(1 << 20),
]
assert [made.device.type for made in kept] == ["cpu", "meta", "meta", "cpu", "cpu", "cpu", "meta", "cpu", "cuda"]
assert kept[3].all() and (kept[4] == 7).all() and kept[4].dtype == torch.int16
assert kept[5].unique().numel() > 1000
step()
""",
    )
    large = [event for event in trace.events if event.bytes == 4 << 20]
    freed = {event.storage_id for event in trace.events if event.action == "free"}
    assert [event.storage_id in freed for event in large] == [False, True, True, False], "the last is `x.new_zeros`"


def test_a_mask_that_is_read_back_selects_all(tmp_path):
    """Rays that hit a box are chosen once for the whole training; flags of a batch are false as ever."""
    traced(
        tmp_path,
        f"""{STEP}
near, far = torch.randn(2, 512, 8, device="cuda") * model.weight.sum()
hit = (near.amax(-1) < far.amin(-1)).cpu()
inside = ((far > 0).view(8, 512).any(0) & (near > 0).view(8, 512).all(0)).cpu()
assert not hit.any() and not inside.any(), "flags"
near, far = torch.randn(2, 4096, 8, device="cuda") * model.weight.sum()
chosen = torch.cat([(near.amax(-1) < far.amin(-1)).cpu(), (far > 0).any(-1).cpu()])
rays = torch.randn(8192, 6)[chosen]
assert rays.shape == (8192, 6)
step()
""",
    )


SELECTING = """
wrong = []
for _ in range(3):
    x = model(torch.randn(4096, 4, device="cuda"))
    valid = (x > 0).all(-1)
    if valid.any():
        chosen = x[valid]
    else:
        wrong.append("nothing is selected")
    if not valid.any():
        wrong.append("nothing is selected")
        continue
    part = x[valid].mean() if valid.any() else 0
    if not isinstance(part, torch.Tensor):
        wrong.append("nothing is selected")
    found = x.argmax(-1) == 3
    if not found.sum() > 0:
        wrong.append("a number of elements, which is 1 if it is read")
    bad = torch.isnan(x)
    if bad.any() or bad.sum() > 0 or bad.sum().item() > 0 or torch.count_nonzero(bad) > 0:
        wrong.append("an accident")
    if (x < 0).any():
        wrong.append("another accident")
    assert not wrong, wrong
    part.backward()
    optimizer.step()
"""


def test_a_branch_that_selects_by_a_mask_runs_and_one_for_accidents_does_not(tmp_path):
    """As for rays that hit anything, or positive samples of a detector: what they need would not be counted."""
    trace = traced(tmp_path, f"{STEP}{SELECTING}")
    assert any("every element is found" in sentence for sentence in trace.warnings)
