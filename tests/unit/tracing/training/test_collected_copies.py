"""Copies of a model that a loop adds to a list."""

from __future__ import annotations

import ast
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="tracing needs torch")

MiB = 2**20


class Model(torch.nn.Module):
    """It says that its parameters are so large and on a GPU, which is not needed."""

    def __init__(self, mib, kind="cuda"):
        super().__init__()
        self.parts = [SimpleNamespace(nbytes=mib * MiB, device=SimpleNamespace(type=kind))]

    def parameters(self):
        return iter(self.parts)

    def buffers(self):
        return iter(())


def sentences(append, model, *, epochs=11, peak_mib=100):
    loop = ast.parse(f"for epoch in range({epochs}):\n    train()\n    {append}").body[0]
    names = {"model": model, "epoch": 0, "kept": []}
    from cotenant.tracing.training.collected_copies import collected_copies

    allocated = SimpleNamespace(live_bytes={}, peak_bytes={0: peak_mib * MiB})
    return list(collected_copies([(sys._getframe(), loop, names, True)], allocated))


@pytest.mark.parametrize(
    "append",
    [
        "kept.append(copy.deepcopy(model))",
        "kept.append(deepcopy(model).eval())",
        "kept.append((epoch, deepcopy(model.state_dict())))",
        "self.kept.append(deepcopy(model))",
    ],
)
def test_copies_are_reported_with_what_those_that_come_take(append):
    (sentence,) = sentences(append, Model(8))
    assert sentence.startswith("a copy of a model is added to a list at test_collected_copies.py, line 3, 8.0 MiB on ")
    assert sentence.endswith(": 80.0 MiB in the 10 that come are not included")


@pytest.mark.parametrize(
    ("append", "model", "more"),
    [
        pytest.param("kept.append(model)", Model(8), {}, id="no copy"),
        pytest.param("kept.insert(0, deepcopy(model))", Model(8), {}, id="another method"),
        pytest.param("kept.append(deepcopy(epoch))", Model(8), {}, id="a copy of something else"),
        pytest.param("kept.append(deepcopy(model.losses()))", Model(8), {}, id="a copy of what a method gives"),
        pytest.param("kept.append(deepcopy(model))", Model(8, "cpu"), {}, id="on the CPU"),
        pytest.param("kept.append(deepcopy(model))", Model(8), {"epochs": 1}, id="none that comes"),
        pytest.param("kept.append(deepcopy(model))", Model(1), {}, id="small"),
        pytest.param("kept.append(deepcopy(model))", Model(8), {"peak_mib": 1601}, id="small beside the peak"),
    ],
)
def test_others_are_not(append, model, more):
    assert sentences(append, model, **more) == []
