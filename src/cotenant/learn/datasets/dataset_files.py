"""Data sets on disk: one table per family (CSV; also Parquet where pyarrow is installed), and its schema.

The schema, `FAMILY.schema.json`, lists every column with its type, unit and meaning, and the provenance of the rows.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cotenant.core.errors import DatasetError, UsageError
from cotenant.learn.datasets.dataset_row import (
    FAMILIES,
    DatasetRow,
    Extra,
    Family,
    check,
    layers_from_text,
    layers_to_text,
)
from cotenant.learn.datasets.published import is_published, read_published
from cotenant.osutil import atomic

VERSION = 2

COLUMNS: Mapping[str, tuple[str, str, str]] = {
    "config_id": ("str", "", "names the configuration; of a generated one it rebuilds the network"),
    "family": ("str", "", "mlp, cnn or transformer"),
    "group": ("str", "", "shape of the architecture, to split by"),
    "status": ("str", "", "ok, oom, crash or timeout; only ok has a peak to learn from"),
    "source": ("str", "", "measured, traced, or published:NAME"),
    "batch": ("int", "samples", "of a step"),
    "peak_bytes": ("int", "bytes", "most of the GPU's memory in use, context included; empty where not known"),
    "context_bytes": ("int", "bytes", "of it beside the allocator; empty where not known"),
    "capacity_bytes": ("int", "bytes", "memory of the GPU; empty where not known"),
    "smact": ("float", "ratio", "SM activity, mean over the timed steps; empty where not measured"),
    "smocc": ("float", "ratio", "SM occupancy, likewise"),
    "drama": ("float", "ratio", "DRAM activity, likewise"),
    "parameters": ("int", "elements", "of all layers; derived from `layers`"),
    "activations": ("int", "elements", "outputs of all layers for one sample; derived from `layers`"),
    "layers": (
        "str",
        "",
        "KIND:OUTPUT_SHAPE:PARAMETERS:NAME of each layer, `;` between them, shapes without the batch",
    ),
}
"""Type, unit and meaning of every column that is not an extra."""

_DERIVED = ("parameters", "activations")
_TYPES: Mapping[str, type[Extra]] = {"str": str, "int": int, "float": float, "bool": bool}


def write_dataset(
    folder: Path,
    family: Family,
    rows: Sequence[DatasetRow],
    provenance: Mapping[str, object],
    meanings: Mapping[str, tuple[str, str]] = MappingProxyType({}),
) -> tuple[Path, ...]:
    """Write the rows of one family; returns the files, the CSV first.

    `meanings`: unit and meaning of extras, by name.

    Raises:
        DatasetError: a row is invalid or of another family, or an extra has a column's name or differs in type.
    """
    extras = _extra_types(rows)
    for row in rows:
        check(row)
        if row.family != family:
            raise DatasetError(f"row `{row.config_id}` is of family `{row.family}`, wanted `{family}`")
    folder.mkdir(parents=True, exist_ok=True)
    table, schema = folder / f"{family}.csv", folder / f"{family}.schema.json"
    cells = [_cells(row, extras) for row in rows]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, *extras])
    writer.writerows([["" if value is None else value for value in line] for line in cells])
    atomic.write_text(table, text.getvalue())
    atomic.write_text(schema, json.dumps(_schema(family, rows, extras, provenance, meanings), indent=2) + "\n")
    if importlib.util.find_spec("pyarrow") is None:
        return table, schema
    return table, schema, _write_parquet(folder / f"{family}.parquet", cells, extras)


def schema_of(path: Path) -> Path:
    """Path of the schema of a table."""
    return path.with_name(f"{path.name.split('.')[0]}.schema.json")


def read_dataset(path: Path) -> tuple[DatasetRow, ...]:
    """The rows of a table (`.csv` or `.parquet`) with its schema beside it.

    Raises:
        DatasetError: the schema has another version, a column is missing, or a cell or a row is invalid.
        UsageError: there is no such file.
    """
    try:
        extras = _extras_of(schema_of(path))
        lines = _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path)
    except OSError as error:
        raise UsageError(f"cannot read `{error.filename}`: {(error.strerror or str(error)).lower()}") from error
    except (ValueError, csv.Error) as error:  # text that is not UTF-8; pyarrow.ArrowInvalid is a ValueError
        raise DatasetError(f"`{path}` is no table: {error}") from error
    return tuple(_row(line, extras, f"{path}:{number}") for number, line in enumerate(lines, start=2))


def _extras_of(schema_path: Path) -> dict[str, str]:
    """Types of the extras by name, of a schema."""
    try:
        schema = json.loads(schema_path.read_text(encoding="utf-8"))
        version = schema.get("version")
        types = {column["name"]: column["type"] for column in schema["columns"]} if version == VERSION else {}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DatasetError(f"`{schema_path}` is no schema: {error}") from error
    if version != VERSION:
        raise DatasetError(
            f"`{schema_path}` has version {version}, wanted {VERSION}",
            hint="make it again with `cotenant learn clean`",
        )
    extras = {name: kind for name, kind in types.items() if name not in COLUMNS}
    unknown = [name for name, kind in extras.items() if kind not in _TYPES]
    if unknown:
        raise DatasetError(f"`{schema_path}`: the type of `{unknown[0]}` is `{extras[unknown[0]]}`")
    return extras


def _extra_types(rows: Sequence[DatasetRow]) -> dict[str, str]:
    """Names of all extras with their types, in the order of their first row."""
    found: dict[str, str] = {}
    for row in rows:
        for name, value in row.extras.items():
            kind = type(value).__name__
            if name in COLUMNS:
                raise DatasetError(f"row `{row.config_id}`: the extra `{name}` has the name of a column")
            if found.setdefault(name, kind) != kind:
                raise DatasetError(f"row `{row.config_id}`: the extra `{name}` is a {kind}, elsewhere a {found[name]}")
    return found


def _cells(row: DatasetRow, extras: Mapping[str, str]) -> list[Extra | None]:
    values: list[Extra | None] = [
        layers_to_text(row.layers) if name == "layers" else getattr(row, name) for name in COLUMNS
    ]
    return [*values, *(row.extras.get(name) for name in extras)]


def _schema(
    family: Family,
    rows: Sequence[DatasetRow],
    extras: Mapping[str, str],
    provenance: Mapping[str, object],
    meanings: Mapping[str, tuple[str, str]],
) -> dict[str, object]:
    extra_columns = {name: (kind, *meanings.get(name, ("", "see the source"))) for name, kind in extras.items()}
    columns = [
        {"name": name, "type": kind, "unit": unit, "meaning": meaning}
        for name, (kind, unit, meaning) in {**COLUMNS, **extra_columns}.items()
    ]
    return {
        "version": VERSION,
        "family": family,
        "rows": len(rows),
        "statuses": dict(sorted(Counter(row.status for row in rows).items())),
        "sources": dict(sorted(Counter(row.source for row in rows).items())),
        "columns": columns,
        "provenance": dict(provenance),
    }


def _row(line: Mapping[str, Any], extras: Mapping[str, str], where: str) -> DatasetRow:
    missing = [name for name in (*COLUMNS, *extras) if name not in line]
    if missing:
        raise DatasetError(f"{where}: no column `{missing[0]}`")
    try:
        fields = {name: _value(line[name], kind) for name, (kind, _, _) in COLUMNS.items() if name not in _DERIVED}
        fields["layers"] = layers_from_text(str(line["layers"]))
        values = {name: _value(line[name], kind) for name, kind in extras.items()}
        row = DatasetRow(**fields, extras={name: value for name, value in values.items() if value not in (None, "")})
        return _checked(row, line)
    except (ValueError, TypeError) as error:
        raise DatasetError(f"{where}: {error}") from error
    except DatasetError as error:
        raise DatasetError(f"{where}: {error.message}") from error


def _checked(row: DatasetRow, line: Mapping[str, Any]) -> DatasetRow:
    if row.parameters != int(line["parameters"]) or row.activations != int(line["activations"]):
        raise DatasetError("`parameters` or `activations` do not follow from `layers`")
    return check(row)


def _value(cell: Any, kind: str) -> Any:
    if cell is None or cell == "":
        return None if kind != "str" else ""
    if kind == "bool" and str(cell) not in ("True", "False"):
        raise ValueError(f"`{cell}` is neither `True` nor `False`")
    return str(cell) == "True" if kind == "bool" else _TYPES[kind](cell)


def _read_csv(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _read_parquet(path: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise UsageError("reading Parquet needs pyarrow", hint="read the CSV beside it") from error
    found: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    return found


def _write_parquet(path: Path, cells: Sequence[Sequence[Extra | None]], extras: Mapping[str, str]) -> Path:
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    types = {**{name: kind for name, (kind, _, _) in COLUMNS.items()}, **extras}
    arrays = [pa.array([line[i] for line in cells], type=kinds[kind]) for i, kind in enumerate(types.values())]
    parquet.write_table(pa.table(arrays, names=list(types)), path)
    return path


def read_families(paths: Sequence[Path]) -> list[list[DatasetRow]]:
    """The rows of all files, published or ours, by family; families without rows are left out.

    Raises:
        DatasetError: a file is neither, or invalid; there are no rows, or one is repeated, so that it could be in the
            training and in the test part.
        UsageError: a file cannot be read.
    """
    rows: list[DatasetRow] = []
    for path in paths:
        rows += _read_file(path)
    twice = [key for key, count in Counter((row.config_id, row.source) for row in rows).items() if count > 1]
    if twice:
        raise DatasetError(
            f"{len(twice)} configurations are repeated, e.g. `{twice[0][0]}` from `{twice[0][1]}`",
            hint="name each file once; merge runs with `cotenant learn clean`",
        )
    found = [[row for row in rows if row.family == family] for family in FAMILIES]
    found = [rows for rows in found if rows]
    if not found:
        raise DatasetError(f"no rows in {', '.join(f'`{path}`' for path in paths) or 'no files'}")
    return found


def _read_file(path: Path) -> Sequence[DatasetRow]:
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is not there"
        raise UsageError(f"cannot read `{path}`: it {what}", hint="wanted a table of `cotenant learn clean`")
    if is_published(path):
        return read_published(path)
    if not schema_of(path).is_file():
        raise DatasetError(
            f"`{path}` is no data set: no `{schema_of(path).name}` beside it, and no published set of GPUMemNet",
            hint="make tables with `cotenant learn clean`",
        )
    return read_dataset(path)
