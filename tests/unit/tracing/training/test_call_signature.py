"""Which calls have a signature."""

from __future__ import annotations

from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="tracing needs torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from cotenant.tracing.training.call_signature import may_have_gpu_tensors, signature  # noqa: E402

FAKE = FakeTensorMode().from_tensor(torch.zeros(2))


class Pair(NamedTuple):
    first: object
    second: object


@pytest.mark.parametrize(
    ("value", "may_have"),
    [
        pytest.param(torch.zeros(2), False, id="a CPU tensor"),
        pytest.param(object(), False, id="an image"),
        pytest.param(1.5, False, id="a number"),
        pytest.param(FAKE, True, id="a GPU tensor"),
        pytest.param([FAKE], True, id="a list"),
        pytest.param({"x": FAKE}, True, id="a dict"),
        pytest.param(Pair(1, FAKE), True, id="a named tuple"),
    ],
)
def test_a_call_without_gpu_tensors_has_no_signature(value, may_have):
    assert may_have_gpu_tensors((1, value)) == may_have
    assert (signature(torch.nn.Identity(), (1, value), {}) is not None) == may_have
