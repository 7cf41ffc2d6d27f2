"""Shape functions of another distribution pass the contract, and the CLI estimates a script with their operator."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from distributions import a_distribution, declare

TESTS = Path(__file__).parents[1]
TIMEOUT_S = 240
SCRIPT = """
import torch

library = torch.library.Library("acme", "DEF")
library.define("pairwise(Tensor first, Tensor second) -> Tensor")  # its kernel is for CUDA only

model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = torch.randn(256, 64).cuda()
for _ in range(3):
    with torch.no_grad():
        distances = torch.ops.acme.pairwise(rows, rows)
    (model(rows).sum() + distances.sum()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def run(folder, *words):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}
    return subprocess.run(
        [sys.executable, "-m", *words],
        env={**env, "XDG_CACHE_HOME": str(folder / "cache")},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.fixture
def acme(tmp_path):
    shutil.copy(TESTS / "plugins" / "acme_operators.py", tmp_path)
    declare(tmp_path, {"cotenant.shape_functions": {"acme": "acme_operators:operators"}})
    return tmp_path


def test_the_contract_tests_cover_a_registered_table(acme):
    done = run(
        acme, "pytest", "-p", "no:cacheprovider", "-q", "-k", "acme", str(TESTS / "contracts/test_shape_functions.py")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("....")


def test_a_script_with_the_operator_of_a_plugin_is_estimated(acme, script):
    done = run(acme, "cotenant", "estimate", script, "--gpu", "A100-40GB", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["bound_bytes"] > 0


def test_without_its_plugin_an_operator_is_named_in_the_error(tmp_path, script):
    done = run(tmp_path, "cotenant", "estimate", script, "--gpu", "A100-40GB")
    assert done.returncode != 0
    assert "`acme::pairwise` cannot be traced: it has no meta kernel, and no shape function in" in done.stderr
    assert "(train.py, line 12)" in done.stderr


def test_a_table_with_a_duplicate_function_is_refused_with_both_names(tmp_path, script):
    source = """
        from cotenant.tracing.operators.registry import OperatorTable

        operators = OperatorTable()

        @operators.shape_of("aten::mm")
        def product(ctx, func, args, kwargs):
            return NotImplemented
    """
    targets = {"cotenant.shape_functions": {"acme": "acme_operators:operators"}}
    a_distribution(tmp_path, module="acme_operators", source=source, entry_points=targets)
    done = run(tmp_path, "cotenant", "estimate", script, "--gpu", "A100-40GB")
    assert done.returncode != 0
    assert "`aten::mm` has two shape functions" in done.stderr
    assert "`acme_operators.product`" in done.stderr
    assert "`override=True`" in done.stderr
