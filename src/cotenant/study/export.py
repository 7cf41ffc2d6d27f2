"""Runs of a study, with their metrics over time, for other tools: SQLite and Parquet; MLflow is in `mlflow_runs`.

The CSV files of the study are the truth; an export can be made again at any time.
"""

from __future__ import annotations

import importlib.util
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotenant.core.errors import UsageError
from cotenant.measurement.job_list import UNTIL, JobGroup, Until
from cotenant.measurement.result_table import SAMPLE_COLUMNS, read_rows

TABLES = ("overhead", "metrics", "collocation", "rows", "calibrate")
"""Names of the studies, and of their tables; the last two are those of `cotenant measure` and `calibrate`."""

Value = str | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRun:
    """A row of a study.

    Attributes:
        study: one of `TABLES`. number: of the row, from 1.
        samples: of the GPU over time, with `SAMPLE_COLUMNS`; empty where none were taken.
    """

    study: str
    number: int
    fields: Mapping[str, Value]
    samples: tuple[Mapping[str, Value], ...] = ()


def runs_of(folder: Path) -> list[StudyRun]:
    """The runs of all studies in a folder.

    Raises:
        UsageError: there are none.
    """
    found = [run for study in TABLES if (folder / f"{study}.csv").exists() for run in _runs(folder, study)]
    if not found:
        raise UsageError(f"no study in `{folder}`", hint=f"wanted {', '.join(f'`{name}.csv`' for name in TABLES)}")
    return found


def _runs(folder: Path, study: str) -> Iterator[StudyRun]:
    for number, row in enumerate(read_rows(folder / f"{study}.csv"), start=1):
        samples: tuple[Mapping[str, Value], ...] = ()
        if study == "collocation":
            group = JobGroup(jobs=tuple(row["group"].split("+")), sharing=row["sharing"], until=_until(row["until"]))
            path = folder / group.folder / group.run_folder(int(row["repeat"])) / "gpu.csv"
            samples = tuple(map(_typed, read_rows(path))) if path.exists() else ()
        yield StudyRun(study=study, number=number, fields=_typed(row), samples=samples)


def _until(text: str) -> Until:
    return next((until for until in UNTIL if until == text), "seconds")


def _typed(row: Mapping[str, str]) -> dict[str, Value]:
    return {name: _value(text) for name, text in row.items()}


def _value(text: str) -> Value:
    """A cell as a number where it is one; None where it is empty."""
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        return text
    return value if math.isfinite(value) else text


def to_sqlite(runs: Sequence[StudyRun], path: Path) -> None:
    """Write a database with a table for each study and the table `samples` (study, run, and `SAMPLE_COLUMNS`).

    Raises:
        UsageError: the file exists already.
    """
    if path.exists():
        raise UsageError(f"`{path}` exists already", hint="name another file, or remove it")
    with sqlite3.connect(path) as database:
        for study in dict.fromkeys(run.study for run in runs):
            of_study = [run for run in runs if run.study == study]
            columns = list(of_study[0].fields)
            database.execute(f"CREATE TABLE {study} (run INTEGER PRIMARY KEY, {_quoted(columns)})")
            marks = ", ".join("?" * (len(columns) + 1))
            database.executemany(
                f"INSERT INTO {study} VALUES ({marks})",  # noqa: S608 (a name of `TABLES`, and question marks)
                [(run.number, *run.fields.values()) for run in of_study],
            )
        database.execute(f"CREATE TABLE samples (study TEXT, run INTEGER, {_quoted(SAMPLE_COLUMNS)})")
        marks = ", ".join("?" * (len(SAMPLE_COLUMNS) + 2))
        database.executemany(
            f"INSERT INTO samples VALUES ({marks})",  # noqa: S608 (question marks)
            [
                (run.study, run.number, *(sample[name] for name in SAMPLE_COLUMNS))
                for run in runs
                for sample in run.samples
            ],
        )
    database.close()


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def to_parquet(runs: Sequence[StudyRun], folder: Path) -> list[Path]:
    """Write `STUDY.parquet` for each study and `samples.parquet` into `folder`.

    Raises:
        UsageError: pyarrow is not installed.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise UsageError("Parquet needs the package `pyarrow`", hint="install it, or use `--sqlite`")
    import pyarrow
    from pyarrow import parquet

    folder.mkdir(parents=True, exist_ok=True)
    tables: dict[str, list[Mapping[str, Value]]] = {}
    for run in runs:
        tables.setdefault(run.study, []).append({"run": run.number, **run.fields})
        for sample in run.samples:
            tables.setdefault("samples", []).append({"study": run.study, "run": run.number, **sample})
    written = []
    for name, rows in tables.items():
        columns = {column: _column([row[column] for row in rows]) for column in rows[0]}
        written.append(folder / f"{name}.parquet")
        parquet.write_table(pyarrow.table(columns), written[-1])
    return written


def _column(values: Sequence[Value]) -> list[Any]:
    """The values of a column in one type: text where any is text."""
    if any(isinstance(value, str) for value in values):
        return [None if value is None else str(value) for value in values]
    return list(values)
