"""Columns of a synthetic table that reward functions of TRL read, such as `def reward(completions, answer, **kwargs)`.

A trainer gives a reward function all columns of the table by name, so it neither looks one up in a row nor names one.
The names are those of parameters without a default, and of items of the function's `**kwargs`.

Source: trl/trainer/grpo_trainer.py, `GRPOTrainer._calculate_rewards`.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from cotenant.tracing.data.tables.column_values import ColumnMaker
from cotenant.tracing.patches.registry import Patch, Phase

_GIVEN = {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments"}
"""What trainers give beside the columns."""


def patches(maker: ColumnMaker, only_synthetic: Callable[[], bool]) -> list[Patch]:
    """Trainers that take reward functions. `only_synthetic`: whether the script has loaded no real table."""
    return [
        Patch(
            target=f"trl.trainer.{module}:{name}.__init__", phase=Phase.DATA, wraps=True,
            replacement=functools.partial(_adding_columns, maker, only_synthetic),
            reason="A synthetic table cannot know beforehand which columns a reward function reads.",
            source="trl/trainer/grpo_trainer.py, `GRPOTrainer._calculate_rewards`",
        )
        for module, name in (("grpo_trainer", "GRPOTrainer"), ("rloo_trainer", "RLOOTrainer"))
    ]  # fmt: skip


def columns_of(function: Any) -> list[str]:
    """Columns that a reward function reads; none of a model or of a name of one."""
    code = getattr(function, "__code__", None)
    if code is None:
        return []
    parameters = inspect.signature(function).parameters.values()
    required = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    rest = next((parameter.name for parameter in parameters if parameter.kind is parameter.VAR_KEYWORD), None)
    return [name for name in dict.fromkeys([*required, *_items_of(code, rest)]) if name not in _GIVEN]


def _items_of(code: Any, variable: str | None) -> Iterator[str]:
    """Texts by which the code takes items of a variable: `kwargs["solution"]`."""
    steps = list(dis.get_instructions(code))
    for taken, key, item in zip(steps, steps[1:], steps[2:], strict=False):
        is_item = item.opname == "BINARY_SUBSCR" or (item.opname == "BINARY_OP" and item.argrepr == "[]")
        is_taken = taken.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) and taken.argval == variable
        if is_item and is_taken and key.opname == "LOAD_CONST" and isinstance(key.argval, str):
            yield key.argval


def _adding_columns(maker: ColumnMaker, only_synthetic: Callable[[], bool], original: Any) -> Any:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(original).bind(self, *args, **kwargs)
        rewards = given.arguments.get("reward_funcs")
        functions = rewards if isinstance(rewards, list) else [rewards]
        names = [name for function in functions for name in columns_of(function)]
        for tables in ("train_dataset", "eval_dataset"):
            table: Any = given.arguments.get(tables)
            if only_synthetic() and hasattr(table, "add_column") and hasattr(table, "__len__"):
                for name in names:
                    if name not in table.column_names:
                        table = table.add_column(name, maker.column(name, len(table)))
                given.arguments[tables] = table
        original(*given.args, **given.kwargs)

    return init
