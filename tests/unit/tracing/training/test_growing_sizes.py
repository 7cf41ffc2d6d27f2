"""Branches that unfreeze parameters, and sizes that a loop takes from a list."""

from __future__ import annotations

import ast

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.training.growing_sizes import indexed, unfreezes


def branch(body):
    return ast.parse(f"if epoch == 9:\n    {body}").body[0]


@pytest.mark.parametrize(
    "body",
    [
        "model.requires_grad_()",
        "model.requires_grad_(True)",
        "for p in model.parameters(): p.requires_grad = True",
        "unfreeze(model)",
        "model.unfreeze_encoder()",
        "self.un_freeze()",
        "thaw(model)",
    ],
)
def test_a_branch_that_unfreezes_is_found_from_the_second_round_on(body):
    assert unfreezes(branch(body), 2)
    assert not unfreezes(branch(body), 1)
    assert not unfreezes(branch(body), None)


@pytest.mark.parametrize(
    "body",
    [
        "model.requires_grad_(False)",
        "model.requires_grad_(requires_grad=False)",
        "for p in model.parameters(): p.requires_grad = False",
        "requires_grad = True",
        "freeze(model)",
        "model.train()",
    ],
)
def test_another_branch_is_not(body):
    assert not unfreezes(branch(body), 2)


@pytest.mark.parametrize(
    ("statement", "is_size"),
    [
        ("size = sizes[i]", True),
        ("h = crop_sizes[step % 3]", True),
        ("resolution = stages[i]", True),
        ("h, width = shape_list[i]", True),
        ("self.patch = self.patches[self.stage]", True),
        ("size = sizes[0]", False),
        ("size = sizes[:3]", False),
        ("x = batch_names[i]", False),
        ("model = models[i]", False),
    ],
)
def test_a_size_is_known_by_its_name_or_that_of_its_list(statement, is_size):
    assert bool(indexed(ast.parse(f"for i in range(9):\n    {statement}").body[0])) is is_size
