"""Rows from files of either kind: a published set, or a data set of ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cotenant.core.errors import DatasetError
from cotenant.learn.dataset import read_dataset
from cotenant.learn.published import is_published, read_published
from cotenant.learn.rows import FAMILIES, Row


def read_families(paths: Sequence[Path]) -> list[list[Row]]:
    """The rows of all files, those of one family together, families without rows left out.

    Raises:
        DatasetError: a file cannot be read, or none has rows.
    """
    rows: list[Row] = []
    for path in paths:
        rows += read_published(path) if is_published(path) else read_dataset(path)
    found = [[row for row in rows if row.family == family] for family in FAMILIES]
    found = [each for each in found if each]
    if not found:
        raise DatasetError(f"no rows in {', '.join(f'`{path}`' for path in paths) or 'no files'}")
    return found
