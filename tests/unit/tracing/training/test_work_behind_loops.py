"""Which statements behind a loop the script goes on to, by their source."""

from __future__ import annotations

import ast
import sys

import pytest

torch = pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.training.statements_behind import Behind  # noqa: E402

gpu, cpu, name = torch.device("cuda", 0), torch.device("cpu"), "cuda:0"


def goes_on_to(source):
    (statement,) = ast.parse(source).body
    behind = Behind(sys._getframe(), __file__, statement, frozenset())  # the frame sees this module's names
    return behind.runs_model()


@pytest.mark.parametrize(
    "source",
    [
        "x = features.cuda()",
        "for i in range(9): kept.append(rows[i].cuda(non_blocking=True))",
        "x = torch.empty(8, device='cuda')",
        "x = features.to(gpu)",
        "x = features.to(name, torch.float16)",
    ],
)
def test_what_is_put_on_a_gpu_behind_a_loop_is_work(source):
    assert goes_on_to(source)


def measured(model, batch):
    model.eval()
    return model(batch)


def counted(table):
    table.eval("a + b")
    return len(table)


def test_a_function_that_puts_what_is_not_known_into_evaluation_mode_is_work():
    assert goes_on_to("print(measured(trained, batch))")
    assert not goes_on_to("print(counted(trained))")
    assert not goes_on_to("measured(name, batch)")
    assert not goes_on_to("trained.eval()")


@pytest.mark.parametrize(
    "source",
    [
        "x = features.cpu()",
        "x = features.to(cpu)",
        "x = features.to(torch.float16)",
        "x = torch.empty(8, device='cpu')",
        "x = torch.empty(8, device=unknown)",
        "print('cuda', name)",
        "def later(): return features.cuda()",
    ],
)
def test_other_statements_are_not(source):
    assert not goes_on_to(source)
