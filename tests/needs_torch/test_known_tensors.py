"""Values of tensors on the null GPU, without the null GPU: fake tensors stand for those in its memory."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="follows operators of torch")

from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402 - needs torch
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode  # noqa: E402

from apart import apart  # noqa: E402
from cotenant.tracing.assumptions import booleans, known_values  # noqa: E402
from cotenant.tracing.assumptions.known_values import may_have_values  # noqa: E402
from cotenant.tracing.cuda_build.known_tensors import KnownTensors  # noqa: E402
from cotenant.tracing.patches.registry import PatchTable  # noqa: E402


class Driver:
    foreign = 0

    def null_foreign_launches(self):
        return self.foreign


class OfFakes(KnownTensors):
    @staticmethod
    def is_on_gpu(value):
        if isinstance(value, (tuple, list)):
            return bool(value) and all(map(OfFakes.is_on_gpu, value))
        return isinstance(value, FakeTensor) and value.device.type == "cuda"


@pytest.fixture
def driver():
    return Driver()


@pytest.fixture
def known(driver):
    tensors = OfFakes(driver)
    tensors._sees_kernels = False  # a CPU build has none for a GPU
    table = PatchTable(tensors.patches())
    table.apply()
    yield tensors
    table.undo()


@pytest.fixture
def on_gpu():
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def make(values):
        with mode:
            return torch.empty(len(values), dtype=torch.int64, device="cuda")

    return make


def copied(known, on_gpu, values):
    """A tensor of a script that copied `values` to the GPU."""
    made = on_gpu(values)
    known._set(made, torch.tensor(values))
    return made


@pytest.mark.parametrize(
    ("compute", "wanted"),
    [
        pytest.param(lambda x: x == 3, [False, True, False], id="a number in the place of a tensor"),
        pytest.param(lambda x: (x > 1).all(), False, id="a reduction"),
        pytest.param(lambda x: x.to(torch.bool).logical_not(), [True, False, False], id="another dtype"),
        pytest.param(lambda x: torch.cat([x, x + 1]), [0, 3, 2, 1, 4, 3], id="a list"),
        pytest.param(lambda x: x.max(0).indices, 1, id="one of several results"),
        pytest.param(lambda x: x.narrow(0, 1, 2).sum(), 5, id="a view"),
        pytest.param(lambda x: x.clone().fill_(7), [7, 7, 7], id="filled"),
        pytest.param(lambda x: x.masked_fill_(x == 2, 9), [0, 3, 9], id="written to"),
        pytest.param(lambda x: (x.narrow(0, 2, 1).mul_(2), x)[1], [0, 3, 4], id="written to through a view"),
    ],
)
def test_results_of_known_values_are_known(known, on_gpu, compute, wanted):
    found = known.of(compute(copied(known, on_gpu, [0, 3, 2])))
    assert found is not None
    assert found.tolist() == wanted


@pytest.mark.parametrize(
    ("check", "wanted"),
    [
        pytest.param(lambda x: torch.isfinite(x).all(), True, id="finite"),
        pytest.param(torch.isnan, False, id="no number"),
        pytest.param(
            lambda x: x.isfinite().logical_not().logical_or(x.isinf()).any(), False, id="none of two failures"
        ),
        pytest.param(
            lambda x: x.isnan().logical_or(x < 0).any(), "unlikely", id="a failure, or a number like no other"
        ),
        pytest.param(lambda x: x.isfinite().logical_or(x.sum() == x.mean()), True, id="one of two is enough"),
        pytest.param(lambda x: x.sum() == x.mean(), None, id="a comparison that says nothing"),
    ],
)
def test_checks_are_passed_by_values_that_are_not_known(known, check, wanted):
    with FakeTensorMode():
        found = check(torch.rand(1, device="cuda"))
    assert known.of(found) is None
    assert booleans.assumed(found) == wanted


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda x: x.random_(5), id="random"),
        pytest.param(lambda x: x.bitwise_left_shift_(1), id="an operator that is not followed"),
        pytest.param(lambda x: x.narrow(0, 0, 1).floor_divide_(2), id="in a part"),
    ],
)
def test_what_is_written_otherwise_is_unknown(known, on_gpu, write):
    tensor = copied(known, on_gpu, [0, 3, 2])
    write(tensor)
    assert known.of(tensor) is None


def test_nothing_is_known_after_a_kernel_that_is_not_of_pytorch(known, on_gpu, driver):
    tensor = copied(known, on_gpu, [0, 3, 2])
    driver.foreign += 1
    assert known.of(tensor) is None
    assert known.of(tensor + 1) is None


def test_written_tensors_count_their_versions_as_before(known):
    tensor = torch.zeros(3)
    tensor.fill_(1).add_(2).copy_(torch.ones(3))
    assert tensor._version == 3
    assert tensor.tolist() == [1, 1, 1]


def test_router_spreads_tokens_evenly_over_its_experts(known, on_gpu):
    scores = on_gpu(list(range(24))).view(6, 4)
    _, places = scores.topk(2)
    chosen = known.of(places)
    assert [int((chosen == expert).sum()) for expert in range(4)] == [3, 3, 3, 3]
    assert all(len(set(row)) == 2 for row in chosen.tolist())
    assert known.of((places == 1).any(-1)).sum() == 3
    _, best = scores.topk(2, dim=0)
    assert known.of(best) is None, "the best rows are no experts"


class Wrapper(torch.Tensor):
    """As of functionalization and of DTensor: it has no memory, and says that it is on a GPU."""

    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (3,), device="cuda")

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


def test_tensor_that_wraps_another_has_no_memory_to_look_at():
    assert Wrapper().is_cuda
    assert not KnownTensors.is_on_gpu(Wrapper())
    with FunctionalTensorMode():
        assert not may_have_values(FunctionalTensor.to_functional(torch.ones(3)))


def test_address_may_have_values_as_long_as_the_storage_lives(known):
    """At the same address a gradient may come next, which autograd adds in place if nothing has looked at it."""
    before, tensor = set(known_values._ADDRESSES), torch.ones(4)
    known._set(tensor, torch.ones(4))
    view = tensor[1:]
    del tensor
    assert may_have_values(view)
    del view
    assert before == known_values._ADDRESSES


@apart
def test_gradients_are_those_of_pytorch(known):
    weight = torch.tensor([1.0, 2.0], requires_grad=True)
    (weight.clone().mul_(3) + 1).masked_fill(torch.tensor([True, False]), 0).sum().backward()
    assert weight.grad.tolist() == [0, 3]


def test_copies_to_the_host_have_the_known_values(known, on_gpu):
    tensor, target = copied(known, on_gpu, [0, 3, 2]), torch.zeros(3, dtype=torch.int64)
    known._copy_to_host(tensor, target)
    assert target.tolist() == [0, 3, 2]
