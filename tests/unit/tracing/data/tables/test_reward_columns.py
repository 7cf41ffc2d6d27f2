"""Columns that reward functions read: found in the functions, and added to a synthetic table alone."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.data.data_options import SyntheticSample
from cotenant.tracing.data.tables import reward_columns
from cotenant.tracing.data.tables.column_values import ColumnMaker

MAKER = ColumnMaker.of([SyntheticSample(shape=(4,), dtype="int64")])


def of_parameters(prompts, completions, answer, *more, weight=1.0, trainer_state, **kwargs):
    return [weight for _ in answer]


def of_items(completions, **kwargs):
    others = {**kwargs, "other": completions}
    first = next(iter(kwargs))
    return [kwargs["solution"], others["other"], kwargs.get("maybe"), kwargs[first], (kwargs, "pair")]


def of_a_closure(completions, **columns):
    first = columns["level"]
    return [columns[first] for _ in completions]


class Table:
    def __init__(self, **columns):
        self.columns = columns
        self.column_names = list(columns)

    def __len__(self):
        return len(self.columns["prompt"])

    def add_column(self, name, values):
        return Table(**self.columns, **{name: values})


class Stream:
    """As `datasets.IterableDataset`, whose length is not known."""

    add_column = None


class Trainer:
    def __init__(self, model, reward_funcs, args=None, train_dataset=None, eval_dataset=None):
        self.tables = train_dataset, eval_dataset


def trainer(rewards, *tables, only_synthetic=True, **by_name):
    for patch in reward_columns.patches(MAKER, lambda: only_synthetic):
        made = Trainer.__new__(Trainer)
        patch.replacement(Trainer.__init__)(made, "model", rewards, None, *tables, **by_name)
    return made.tables


@pytest.mark.parametrize(
    ("function", "columns"),
    [
        pytest.param(of_parameters, ["answer"], id="parameters without a default"),
        pytest.param(of_items, ["solution"], id="items of the other columns"),
        pytest.param(of_a_closure, ["level"], id="items of a variable that a comprehension takes, too"),
        pytest.param(functools.partial(of_items), [], id="another callable"),
        pytest.param("a/model", [], id="the name of a model"),
    ],
)
def test_columns_that_a_reward_function_reads(function, columns):
    assert reward_columns.columns_of(function) == columns


def test_synthetic_tables_get_the_columns_that_they_lack():
    rows = {"prompt": ["a", "b"], "answer": ["c", "d"]}
    trained, evaluated = trainer([of_parameters, of_items, of_items], Table(**rows), eval_dataset=Table(prompt=["a"]))
    assert trained.column_names == ["prompt", "answer", "solution"]
    assert trained.columns["answer"] == ["c", "d"]
    assert [len(text.split()) for text in trained.columns["solution"]] == [4, 4]
    assert evaluated.column_names == ["prompt", "answer", "solution"]
    assert trainer(of_items, train_dataset=Table(prompt=["a"]))[0].column_names == ["prompt", "solution"]


def test_other_tables_stay_as_they_are():
    real, stream, rows = Table(prompt=["a"]), Stream(), [{"prompt": "a"}]
    assert trainer(of_items, real, only_synthetic=False) == (real, None)
    assert trainer(of_items, stream, rows) == (stream, rows)


def test_the_trainers_that_take_reward_functions():
    targets = [patch.target for patch in reward_columns.patches(MAKER, lambda: True)]
    assert targets == [
        "trl.trainer.grpo_trainer:GRPOTrainer.__init__",
        "trl.trainer.rloo_trainer:RLOOTrainer.__init__",
    ]
