"""Finds rows that must not be in a training set. Pure.

duplicate   the same configuration twice from one source: it could be in the training and in the test part
twin        the same job under two ids, with the same effect
leak        a feature that is missing or 0 exactly where the run failed: it gives the label away
saturated   a measured peak at the GPU's capacity: there the allocator releases its cache and libraries take smaller
            workspaces, so it is not the job's need
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from cotenant.learn.datasets.dataset_row import ESTIMATED, DatasetRow

Rule: TypeAlias = Literal["duplicate", "twin", "leak", "saturated"]
RULES: tuple[Rule, ...] = get_args(Rule)

SATURATED_SHARE = 0.9
"""Share of the capacity: in the published measurements of a 40-GiB GPU, rows from 36 GB on show it (57 of 1,592)."""

_JOB = ("optimizer", "precision")
"""Extras that distinguish jobs of the same layers and batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetProblem:
    """Rows that violate a rule, by their ids; `message` says how."""

    rule: Rule
    message: str
    config_ids: tuple[str, ...]


def find_problems(rows: Sequence[DatasetRow]) -> tuple[DatasetProblem, ...]:
    """All problems, in the order of the rules."""
    return tuple(found for rule in (_duplicates, _twins, _leaks, _saturated) for found in rule(rows))


def _duplicates(rows: Sequence[DatasetRow]) -> Iterable[DatasetProblem]:
    again = _repeated(rows, lambda row: (row.config_id, row.source))
    if again:
        ids = tuple(group[0].config_id for group in again)
        yield DatasetProblem(
            rule="duplicate", message=f"{len(ids)} configurations are there more than once", config_ids=ids
        )


def _twins(rows: Sequence[DatasetRow]) -> Iterable[DatasetProblem]:
    with_layers = [row for row in rows if row.layers]
    groups = _repeated(
        with_layers, lambda row: (row.source, row.batch, row.layers, *(row.extras.get(name) for name in _JOB))
    )
    twins = [group for group in groups if len({row.config_id for row in group}) > 1]
    if twins:
        ids = tuple(row.config_id for group in twins for row in group)
        yield DatasetProblem(
            rule="twin", message=f"{len(twins)} jobs are there under more than one id ({len(ids)} rows)", config_ids=ids
        )


def _leaks(rows: Sequence[DatasetRow]) -> Iterable[DatasetProblem]:
    names = sorted({name for row in rows for name in row.extras})
    features: Mapping[str, Callable[[DatasetRow], object]] = {
        "layers": lambda row: row.layers,
        "parameters": lambda row: row.parameters,
        "activations": lambda row: row.activations,
        # A value that may be 0 (no dropout) is missing only where it is absent.
        **{name: lambda row, name=name: name in row.extras for name in names},  # type: ignore[misc]  # bound early
    }
    for name, value in features.items():
        empty = [row for row in rows if not value(row)]
        if empty and len(empty) < len(rows) and all(row.status != "ok" for row in empty):
            kinds = ", ".join(sorted({row.status for row in empty}))
            yield DatasetProblem(
                rule="leak",
                message=f"`{name}` is missing or 0 in {len(empty)} rows, all of them failed ({kinds})",
                config_ids=tuple(row.config_id for row in empty),
            )


def _saturated(rows: Sequence[DatasetRow]) -> Iterable[DatasetProblem]:
    ids = tuple(row.config_id for row in rows if is_saturated(row))
    if ids:
        yield DatasetProblem(
            rule="saturated",
            message=f"{len(ids)} peaks are at {SATURATED_SHARE:.0%} of the GPU's memory or above",
            config_ids=ids,
        )


def is_saturated(row: DatasetRow) -> bool:
    """Whether the GPU's capacity limited the peak of a successful measured run. Estimates are not limited."""
    if row.status != "ok" or row.source in ESTIMATED or row.peak_bytes is None or row.capacity_bytes is None:
        return False
    return row.peak_bytes >= SATURATED_SHARE * row.capacity_bytes


def _repeated(rows: Sequence[DatasetRow], key: Callable[[DatasetRow], object]) -> list[list[DatasetRow]]:
    groups: dict[object, list[DatasetRow]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return [group for group in groups.values() if len(group) > 1]
