"""An upper bound of the true elements of a mask, where their positions are not known."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.assumptions import mask_counts  # noqa: E402


class Storage:
    """What masks that are views of each other share."""


class Result:
    """A mask that an operator returned."""

    def __init__(self, dims=1, count=None, storage=None):
        self.size = 100
        self.shape_dims = dims
        self.storage = storage or Storage()
        if count is not None:
            self._cotenant_max_true = (count, 0)

    def untyped_storage(self):
        return self.storage

    def dim(self):
        return self.shape_dims

    def numel(self):
        return self.size


class Operator:
    def __init__(self, name):
        self._opname = name


def bound(name, *args, out=None, values=lambda _: None):
    out = Result() if out is None else out
    mask_counts.propagate(Operator(name), args, out, values)
    return mask_counts.max_true(out)


def test_a_zero_mask_has_no_true_element():
    assert bound("zeros_like", Result()) == 0


def test_setting_elements_adds_as_many_as_the_largest_index():
    index = torch.zeros(7, dtype=torch.int64)
    assert bound("index_put_", Result(count=3), [index], out=Result(count=3)) == 10
    assert bound("index_put_", Result(count=3), [torch.zeros(7, dtype=torch.bool)], out=Result(count=3)) is None


def test_a_mask_that_was_written_to_by_way_of_a_view_has_no_bound():
    mask = Result(count=0)
    bound("copy_", out=Result(storage=mask.storage))
    assert mask_counts.max_true(mask) is None


def test_a_copy_has_the_bound_of_its_source():
    assert bound("clone", Result(count=4)) == 4


def test_an_or_of_two_masks_has_the_sum_of_both_bounds():
    assert bound("logical_or", Result(count=4), Result(count=5)) == 9
    assert bound("logical_or", Result(count=4), Result()) is None


def test_other_operators_leave_no_bound():
    assert bound("gt", Result(count=4)) is None
    assert bound("fill_", out=Result(count=4)) is None


@pytest.mark.parametrize("seed", range(20))
def test_the_bound_of_an_and_is_the_number_of_true_elements_of_the_product(seed):
    rng = random.Random(seed)
    dims = rng.randint(1, 3)
    shape = [rng.randint(1, 5) for _ in range(dims)]
    generator = torch.Generator().manual_seed(seed)
    first, second = (
        torch.rand([size if rng.random() < 0.7 else 1 for size in shape], generator=generator) < 0.5 for _ in range(2)
    )
    product = first & second
    known = {id(first): first, id(second): second}
    out = Result(dims=product.dim())
    assert bound("bitwise_and", first, second, out=out, values=lambda value: known.get(id(value))) == int(product.sum())


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("steps", "most"), [([9, 6, 3, 0], 1), ([9, 6, 6, 0], 2)])
def test_a_number_that_is_not_known_equals_as_many_known_elements_as_are_alike(order, steps, most):
    known, drawn = torch.tensor(steps), torch.tensor(6)
    pair = [known, drawn][::order]
    assert bound("eq", *pair, values=lambda tensor: tensor if tensor is known else None) == most
    assert bound("eq", known, torch.tensor([6, 3, 0, 1]), values=lambda tensor: known) is None
    assert bound("eq", known, drawn, values=lambda tensor: tensor) is None  # both known: the result is, too
