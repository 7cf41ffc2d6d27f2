"""Loops that make a data loader in each iteration, and those over phases, which do not."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.training.loader_loops import loader_loop

SCRIPT = """
for epoch in range(2):
    for name in ("train", "val"):
        for batch in read(loaders[name]):
{body}
"""


def loop_of(tmp_path, body):
    """The line of the loop that makes a loader; None if the script has none."""
    found = []

    def read(_loader):
        loop = loader_loop([sys._getframe(1)])
        found.append(loop and loop[1].lineno)
        return ()

    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(body="\n".join(f"            {line}" for line in body.splitlines())))
    exec(compile(path.read_text(), str(path), "exec"), {"read": read, "loaders": {"train": [], "val": []}})
    (line,) = set(found)
    return line


@pytest.mark.parametrize(
    "body",
    [
        "if name == 'train':\n    loss.backward()\n    optimizer.step()",
        "if name == 'val':\n    total += loss\nelse:\n    accelerator.backward(loss)",
    ],
)
def test_a_loop_over_phases_makes_no_loader(tmp_path, body):
    assert loop_of(tmp_path, body) is None


@pytest.mark.parametrize(
    "body",
    [
        "loss.backward()",
        "if name == 'train':\n    scheduler.step()\nloss.backward()",
        "if name == 'train':\n    first.backward()\nelse:\n    second.backward()",
        "if name == 'train':\n    extra.backward()\nloss.backward()",
        "if epoch == 0:\n    loss.backward()",
    ],
)
def test_a_loop_that_trains_in_each_iteration_makes_one(tmp_path, body):
    assert loop_of(tmp_path, body) == 3
