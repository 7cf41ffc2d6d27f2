"""Branches that unfreeze parameters, and sizes that a loop takes from a list."""

from __future__ import annotations

import ast

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.training.growing_sizes import computed, indexed, iterated, unfreezes


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


@pytest.mark.parametrize(
    ("body", "names"),
    [
        pytest.param("seq_length = min(512, 64 + step // 100 * 64)", ["seq_length"], id="by its name"),
        pytest.param("n = max(16, step // 2)\n    x = torch.randn(n, 4)", ["n"], id="of a tensor's shape"),
        pytest.param("n = 16 if step < 50 else 32\n    x = data[:n]", ["n"], id="of a slice"),
        pytest.param("end = min(step + 64, 1000)\n    x = data[step:end]", [], id="the end of a part"),
        pytest.param("k = step // 100\n    print(k)", [], id="another number"),
        pytest.param("batch_size = step", [], id="no formula"),
    ],
)
def test_sizes_that_a_loop_computes(body, names):
    loop = ast.parse(f"for step in range(99):\n    {body}").body[0]
    assert [ast.unparse(node.targets[0]) for node, _ in computed(loop)] == names


@pytest.mark.parametrize(
    ("head", "names"),
    [
        pytest.param("for batch in (2, 4, 8)", ["batch"], id="by its name"),
        pytest.param("for n in lengths", ["n"], id="of a tensor's shape"),
        pytest.param("for stage, (height, width) in enumerate(tqdm(shapes))", ["(height, width)"], id="counted pairs"),
        pytest.param("for seed in (1, 2, 3)", [], id="another number"),
        pytest.param("while lengths", [], id="no list"),
    ],
)
def test_sizes_that_a_loop_runs_over(head, names):
    loop = ast.parse(f"{head}:\n    x = torch.randn(n, 4)").body[0]
    assert [ast.unparse(node.targets[0]) for node, _ in iterated(loop)] == names
