"""Rows from files of either kind: a published set, or a data set of ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from cotenant.core.errors import DatasetError, UsageError
from cotenant.learn.datasets.dataset_files import read_dataset, schema_of
from cotenant.learn.datasets.dataset_row import FAMILIES, DatasetRow
from cotenant.learn.datasets.published import is_published, read_published


def read_families(paths: Sequence[Path]) -> list[list[DatasetRow]]:
    """The rows of all files, those of one family together, families without rows left out.

    Raises:
        DatasetError: a file is neither, or wrong; there are no rows, or one is there twice, so that it could be trained
            on and tested on.
        UsageError: a file cannot be read.
    """
    rows: list[DatasetRow] = []
    for path in paths:
        rows += _read(path)
    twice = [key for key, count in Counter((row.config_id, row.source) for row in rows).items() if count > 1]
    if twice:
        raise DatasetError(
            f"{len(twice)} configurations are there more than once, e.g. `{twice[0][0]}` from `{twice[0][1]}`",
            hint="name each file once; put runs together with `cotenant learn clean`",
        )
    found = [[row for row in rows if row.family == family] for family in FAMILIES]
    found = [rows for rows in found if rows]
    if not found:
        raise DatasetError(f"no rows in {', '.join(f'`{path}`' for path in paths) or 'no files'}")
    return found


def _read(path: Path) -> Sequence[DatasetRow]:
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is not there"
        raise UsageError(f"cannot read `{path}`: it {what}", hint="wanted a table of `cotenant learn clean`")
    if is_published(path):
        return read_published(path)
    if not schema_of(path).is_file():
        raise DatasetError(
            f"`{path}` is no table: no `{schema_of(path).name}` is beside it, and it is no published set of GPUMemNet",
            hint="make tables with `cotenant learn clean`",
        )
    return read_dataset(path)
