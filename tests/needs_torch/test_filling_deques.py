"""Deques of bounded length that fill with GPU tensors, of which a trace has the first entries."""

from __future__ import annotations

from collections import deque, namedtuple
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cotenant.tracing.training.filling_deques import filling_deques
from traced_scripts import traced

MiB = 1 << 20
ALLOCATED = SimpleNamespace(live_bytes={0: 100 * MiB}, peak_bytes={0: 100 * MiB})
Transition = namedtuple("Transition", "state action")


def tensor(mib=1, device="cuda"):
    with FakeTensorMode():
        return torch.empty(mib * MiB, dtype=torch.uint8, device=device)


def sentence(*deques):
    return filling_deques(ALLOCATED, [*deques, [tensor(500)], {}])


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(tensor, id="tensors"),
        pytest.param(lambda: Transition(tensor(), 3), id="named tuples"),
        pytest.param(lambda: {"state": [tensor()]}, id="containers in containers"),
        pytest.param(lambda: SimpleNamespace(state=tensor()), id="objects"),
    ],
)
def test_what_a_deque_lacks_is_named(entry):
    found = sentence(deque([entry(), entry()], maxlen=100))
    assert found == (
        "a deque of at most 100 entries had few when the trace ended: GPU memory grows by 98.0 MiB until full, which "
        "is not included"
    )


def test_shared_storages_count_once():
    batch = tensor(2)
    found = sentence(deque([batch, batch], maxlen=100))
    assert "grows by 98.0 MiB" in found


def test_several_deques_add_up():
    found = sentence(*(deque([tensor()], maxlen=11) for _ in range(5)))
    assert found.startswith("5 deques of at most 11 entries had few")
    assert "grows by 50.0 MiB" in found


@pytest.mark.parametrize(
    "quiet",
    [
        pytest.param(deque([tensor()] * 3, maxlen=3), id="full"),
        pytest.param(deque([tensor()]), id="without a bound"),
        pytest.param(deque(maxlen=100), id="empty"),
        pytest.param(deque([tensor(device="cpu")], maxlen=100), id="in host memory"),
        pytest.param(deque([tensor()], maxlen=10), id="small"),
        pytest.param(deque([0.5, "text", None], maxlen=100), id="without tensors"),
    ],
)
def test_other_deques_are_not_named(quiet):
    assert sentence(quiet) is None


def test_a_deque_of_gradients_is_named_once(tmp_path):
    script = """
import torch
from collections import deque
model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
last = deque(maxlen=100)
for epoch in range(300):
    for x in torch.randn(4, 8, 512).split(1):
        optimizer.zero_grad()
        model(x.cuda()).sum().backward()
        last.append(model.weight.grad)
        optimizer.step()
"""
    warnings = [warning for warning in traced(tmp_path, script).warnings if "100 entries" in warning]
    assert len(warnings) == 1
    assert "GPU memory grows by 97.0 MiB until full" in warnings[0]
