"""A pytest plug-in: tests that fail when a training script needs more GPU memory than its budget.

    def test_memory(memory_budget):
        memory_budget("train.py", ["--batch-size", "64"], limit="20G", gpu="A100-40GB")

`pytest --update-memory-budgets` saves what is held at the peak in `memory_budgets.json` beside the test file; a later
failure says what changed since then. A module of its own, since pytest imports it in every run: nothing heavy is at its
top.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

FILE = "memory_budgets.json"
_OPTION = "--update-memory-budgets"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of this plug-in."""
    parser.getgroup("cotenant").addoption(
        _OPTION, action="store_true", help=f"save the GPU memory of scripts at their peak in {FILE}"
    )


@pytest.fixture
def memory_budget(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """A function that estimates a script and fails the test if its bound exceeds a limit.

    Its arguments: the script, relative to the folder of the test file; the script's own arguments; `limit`, such as
    `20G`, or bytes; and those of `cotenant.estimators.api.explain`, whose result it returns.
    """
    folder = Path(request.path).parent
    file = folder / FILE
    test = f"{Path(request.path).name}::{request.node.name}"

    def check(script: str, args: Sequence[str] = (), *, limit: str | int, **options: Any) -> Any:
        from cotenant.core.errors import CotenantError
        from cotenant.core.units import parse_bytes
        from cotenant.estimators.api import explain
        from cotenant.estimators.budget import budget_report, parts_at_peak

        name = f"{test} {shlex.join([script, *args])}"  # a test may check several scripts
        try:
            limit_bytes = limit if isinstance(limit, int) else parse_bytes(limit)
            saved = _saved(file)
            result = explain(folder / script, args, **{"workdir": folder, **options})
        except CotenantError as error:  # ours say what is wrong, and a traceback of our code does not
            pytest.fail(f"{script}: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""), pytrace=False)
        if request.config.getoption(_OPTION):
            saved[name] = parts_at_peak(result)
            file.write_text(json.dumps(saved, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        report = budget_report(result, limit_bytes, saved.get(name))
        if report:
            pytest.fail(f"{script} {report}", pytrace=False)
        return result

    return check


def _saved(file: Path) -> dict[str, Any]:
    """What `--update-memory-budgets` saved, by test and command.

    Raises:
        UsageError: the file is not what it wrote.
    """
    from cotenant.core.errors import UsageError

    try:
        saved = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except ValueError:
        saved = None
    if not isinstance(saved, dict):
        raise UsageError(f"`{file}` is not JSON of `{_OPTION}`", hint="delete it, and run pytest with that option")
    return saved
