"""The examples of several GPUs and of data-dependent shapes are traced to their end, small."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from traced_scripts import by_category, traced

torch = pytest.importorskip("torch", reason="tracing needs torch")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL = ("--width", "48", "--layers", "2", "--length", "16")


def example(folder, name, *args, **more):
    return traced(folder, (EXAMPLES / name).read_text(), *args, **more)


def test_a_decoder_on_several_gpus(tmp_path):
    launcher = ["torchrun", "--nproc-per-node", "4"]
    copied = example(tmp_path, "ddp.py", *SMALL, launcher=launcher)
    sharded = example(tmp_path, "ddp.py", *SMALL, "--shard", launcher=launcher)
    assert (copied.partial, sharded.partial, copied.header["processes"]) == (False, False, 4)
    states = by_category(copied)["optimizer state"], by_category(sharded)["optimizer state"]
    assert states[0] == pytest.approx(4 * states[1], rel=0.01)


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="needs torchvision")
def test_a_detector(tmp_path):
    trace = example(tmp_path, "detection.py", "--side", "96", "--model", "ssdlite320_mobilenet_v3_large")
    assert (trace.partial, trace.header["steps"]) == (False, 3)
