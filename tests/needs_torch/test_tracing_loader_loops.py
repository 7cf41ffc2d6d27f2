"""Loops of a script that train one model on other data in every iteration."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from traced_scripts import traced

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Conv2d(1, 4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def loader_of(side, seed=0):
    torch.manual_seed(seed)
    return DataLoader(TensorDataset(torch.randn(200, 1, side, side)), batch_size=50)

def epoch_of(loader):
    for (x,) in loader:
        model(x.cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

def train(sides, epochs=1, shown=""):
    loader = loader_of(side=sides)
    for _ in range(epochs):
        epoch_of(loader)
"""
LAST = 40  # pixels at a side of the last images
LOOPS = {
    "a loader": "for side in (4, 8, 40):\n    loader = loader_of(side)\n    epoch_of(loader)",
    "many epochs": (
        "for side in [4, 8, 40]:\n    loader, name = loader_of(side), 'x'\n"
        "    for epoch in range(9):\n        epoch_of(loader)"
    ),
    "a counter": (
        "stage = 0\nfor epochs in [2, 2, 2]:\n    side = (4, 8, 40)[stage]\n    loader = loader_of(side)\n"
        "    for epoch in range(epochs):\n        epoch_of(loader)\n    stage += 1"
    ),
    "a range": "for k in range(3):\n    loader = loader_of(10 * 2**k)\n    epoch_of(loader)",
    "a function": "for side in (4, 8, 40):\n    train(side, epochs=3)",
    "an argument": "for side in (4, 8, 40):\n    epoch_of(loader_of(side))",
    "what is iterated": (
        "for side in (4, 8, 40):\n    for (x,) in iter(loader_of(side)):\n"
        "        model(x.cuda()).sum().backward()\n        optimizer.step()\n        optimizer.zero_grad()"
    ),
}
ALIKE = {
    "a loader of the same data": ("for epoch in range(9):\n    loader = loader_of(4)\n    epoch_of(loader)", 3),
    "shuffled by a seed": ("for epoch in range(9):\n    loader = loader_of(4, seed=epoch)\n    epoch_of(loader)", 9),
    "an epoch that is passed on": ("for epoch in range(9):\n    train(4, shown=epoch)", 3),
    "an epoch that is shown": (
        (
            "from tqdm import tqdm\nloader = loader_of(4)\nfor epoch in range(9):\n"
            "    for (x,) in tqdm(loader, desc=f'{epoch}', disable=epoch > 99):\n"
            "        model(x.cuda()).sum().backward()\n        optimizer.step()\n        optimizer.zero_grad()"
        ),
        3,
    ),
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS.keys())
def test_batches_that_grow_from_loop_to_loop_are_traced(tmp_path, loop):
    trace = traced(tmp_path, f"{HEAD}\n{loop}\n")
    assert max(event.bytes for event in trace.events if event.action == "alloc") == 4 * 50 * 4 * LAST**2
    assert trace.header.steps == 9
    assert not trace.warnings


@pytest.mark.parametrize(("loop", "steps"), ALIKE.values(), ids=ALIKE.keys())
def test_alike_epochs_are_traced_once(tmp_path, loop, steps):
    trace = traced(tmp_path, f"{HEAD}\n{loop}\n")
    assert trace.header.steps == steps


def test_iterations_with_what_was_there_before_pass(tmp_path):
    loop = "for side in (4, 4, 40):\n    loader = loader_of(side)\n    epoch_of(loader)\n"
    trace = traced(tmp_path, f"{HEAD}\n{loop}")
    assert max(event.bytes for event in trace.events if event.action == "alloc") == 4 * 50 * 4 * LAST**2
    assert trace.header.steps == 6


def test_of_many_sizes_the_first_are_traced(tmp_path):
    source = f"{HEAD}\nfor side in list(range(4, 40)):\n    loader = loader_of(side)\n    epoch_of(loader)\n"
    trace = traced(tmp_path, source)
    assert trace.header.steps == 8 * 3
    line = source[: source.index("for side")].count("\n") + 1
    assert trace.warnings == (
        f"every iteration of the loop at train.py, line {line}, makes a data loader; only the first 8 are included",
    )


LATER = {
    "many sizes of a range": "for side in range(4, 41):\n    loader = loader_of(side)\n    epoch_of(loader)",
    "a size that waits": (
        "for epoch in range(30):\n    loader = loader_of(4 if epoch < 20 else 40)\n    epoch_of(loader)"
    ),
    "a branch": (
        "loader = loader_of(4)\nfor epoch in range(30):\n    if epoch == 20: loader = loader_of(40)\n"
        "    epoch_of(loader)"
    ),
    "a schedule": (
        "sides = {0: 4, 10: 8, 20: 40}\nfor epoch in range(30):\n    if epoch in sides:\n"
        "        loader = loader_of(sides[epoch])\n    epoch_of(loader)"
    ),
    "a function of the epoch": (
        "SIDES = [(10, 4), (20, 8)]\ndef side_of(epoch, last=40):\n    'Pixels.'\n    for end, side in SIDES:\n"
        "        if epoch < end: return side\n    return last\nfor epoch in range(30):\n    side = side_of(epoch)\n"
        "    model(torch.ones(50, 1, side, side, device='cuda')).sum().backward()\n    optimizer.step()\n"
        "    optimizer.zero_grad()"
    ),
}


@pytest.mark.parametrize("loop", LATER.values(), ids=LATER.keys())
def test_batches_that_grow_after_the_traced_steps_are_sought(tmp_path, loop):
    trace = traced(tmp_path, f"{HEAD}\n{loop}\n")
    assert max(event.bytes for event in trace.events if event.action == "alloc") == 4 * 50 * 4 * LAST**2
    assert trace.warnings == ()


GROWING = """
def side_of(step, every): return min(2 + step // every, 20)
for step in range(2000):
    side = side_of(step, {every})
    model(torch.ones(50, 1, side, side, device='cuda')).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_sizes_on_the_way_to_the_largest_are_visited(tmp_path):
    source = HEAD + GROWING.format(every=100).replace("20)", "18)")
    trace = traced(tmp_path, source)
    inputs = {event.bytes for event in trace.events if event.action == "alloc"}
    assert inputs >= {4 * 50 * side**2 for side in range(2, 19)}
    assert (trace.warnings, trace.header.steps) == ((), 3 * 17)


def test_of_many_sizes_the_largest_is_visited_with_a_warning(tmp_path):
    trace = traced(tmp_path, HEAD + GROWING.format(every=100))
    sizes = {event.bytes for event in trace.events if event.action == "alloc"}
    assert (4 * 50 * 20**2 in sizes, 4 * 50 * 19**2 in sizes) == (True, False)
    (warning,) = trace.warnings
    assert warning == (
        "train.py, line 25, comes to 17 other sizes before the largest one; what they leave in the caching allocator is"
        " not included"
    )


def test_a_loader_of_an_epoch_that_cannot_be_reached_adds_a_warning(tmp_path):
    loop = LATER["a branch"].replace("epoch in range(30)", "epoch, _ in enumerate(range(30))")
    (warning,) = traced(tmp_path, f"{HEAD}\n{loop}\n").warnings
    assert warning == (
        "the data loader made at train.py, line 25, comes only after the traced steps; its batches may be larger"
    )


def test_a_validation_on_loaders_of_the_loop_begins_no_training(tmp_path):
    loop = """
for side in (4, 8):
    loader = loader_of(side)
    epoch_of(loader)
    with torch.no_grad():
        for (x,) in loader_of(2 * side):
            model(x.cuda())
"""
    assert traced(tmp_path, HEAD + loop).header.steps == 6
