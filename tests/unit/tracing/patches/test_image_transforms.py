"""Which transforms of images run without the dispatch mode."""

from __future__ import annotations

import sys
import types

import pytest

torch = pytest.importorskip("torch", reason="tracing needs torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from cotenant.tracing.patches import image_transforms  # noqa: E402

IMAGE = torch.zeros(3)


class Counting(TorchDispatchMode):
    """Counts the operators that arrive."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


class Compose:
    def __init__(self, *transforms):
        self.transforms = transforms

    def __call__(self, img):
        for transform in self.transforms:
            img = transform(img)
        return img


class ToTensor:
    def __call__(self, img):
        return img + 1


class Normalize:
    def __init__(self, mean):
        self.mean = mean

    def __call__(self, img):
        return img * 2


class OfTheScript(ToTensor):
    pass


OfTheScript.__name__ = "ToTensor"


@pytest.fixture
def compose(monkeypatch):
    """torchvision's `Compose`, as patched."""
    module = types.ModuleType(image_transforms._MODULE)
    module.ToTensor, module.Normalize = ToTensor, Normalize
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(Compose, "__call__", image_transforms._without_mode(Compose.__call__))
    return Compose


def test_no_operator_of_its_own_transforms_arrives(compose):
    with Counting() as mode:
        result = compose(ToTensor(), Normalize((0.5, 0.5)))(IMAGE)
    assert (result.tolist(), mode.count) == ([2.0] * 3, 0)


@pytest.mark.parametrize(
    "transform",
    [
        pytest.param(OfTheScript(), id="a class of the script by the same name"),
        pytest.param(lambda img: img + 1, id="a function"),
        pytest.param(Normalize(torch.zeros(3)), id="a mean that is a tensor"),
        pytest.param(Normalize([torch.zeros(())]), id="a mean of tensors"),
    ],
)
def test_operators_of_others_arrive_and_those_beside_them_do_not(compose, transform):
    with Counting() as mode:
        compose(ToTensor(), transform)(IMAGE)
    assert mode.count == 1


def test_operators_arrive_for_an_image_on_another_device(compose):
    image = torch.zeros(3, device="meta")
    with Counting() as mode:
        compose(ToTensor())(image)
    assert mode.count == 1


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda: torch.device("cpu"), id="a default device"),
        pytest.param(Counting, id="a mode of the script"),
    ],
)
def test_operators_arrive_beside_another_mode(compose, other):
    with Counting() as mode, other():
        compose(ToTensor())(IMAGE)
    assert mode.count == 1
