"""Turns raw runs into one data set per family."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import cotenant
from cotenant.core.errors import DatasetError
from cotenant.learn.data_collection.configs import MEANINGS, Config, family_of, parse_id, settings_of
from cotenant.learn.data_collection.run_log import FILE, LabelRecord, read_records
from cotenant.learn.datasets.checks import DatasetProblem, Rule, find_problems, is_saturated
from cotenant.learn.datasets.dataset_files import write_dataset
from cotenant.learn.datasets.dataset_row import FAMILIES, DatasetRow, Family, Layer, check, layers_from_text

_NOT_EXTRA = ("shape", "batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """The result of cleaning.

    Attributes:
        superseded: runs of a configuration that has a later run in the same folder.
        findings: the allowed problems.
        files: the files written.
    """

    runs: int
    superseded: int
    rows: dict[Family, int]
    findings: tuple[DatasetProblem, ...]
    files: tuple[Path, ...]


def clean(paths: Sequence[Path], out: Path, *, allow: Collection[Rule] = ()) -> Cleaned:
    """Write a data set for each family with runs in `paths`, which are folders of `run_configs` or their files.

    Failed runs stay, with their status. Of an allowed `duplicate` or `twin` the first row stays; an allowed `saturated`
    row is marked by the extra `saturated`; an allowed `leak` stays. Layers of a process that died before it reported
    them are rebuilt from its id, where torch is installed.

    Raises:
        DatasetError: a rule is violated and not allowed, or a run contradicts its id.
        UsageError: a file cannot be read.
    """
    by_path = {path: read_records(path) for path in paths}
    runs = [run for path in by_path for run in _newest(by_path[path])]
    rows = [row_of(run) for run in runs]
    if not rows:
        raise DatasetError("no runs found", hint="make some with `cotenant learn run`")
    findings = find_problems(rows)
    refused = [problem for problem in findings if problem.rule not in allow]
    if refused:
        message = "; ".join(f"{problem.rule}: {problem.message}, e.g. `{problem.config_ids[0]}`" for problem in refused)
        rules = ",".join(dict.fromkeys(problem.rule for problem in refused))
        raise DatasetError(message, hint=f"check them; `--allow {rules}` continues nevertheless")
    clean_rows = _without(rows, findings)
    provenance = {
        "cotenant": cotenant.__version__,
        "files": [_file_note(path, by_path[path]) for path in by_path],
        "allowed": [f"{problem.rule}: {problem.message}" for problem in findings],
    }
    meanings = {**MEANINGS, "gpu": ("", "that it was measured on, or traced for")}
    files: list[Path] = []
    counts: dict[Family, int] = {}
    for family in FAMILIES:
        own = [row for row in clean_rows if row.family == family]
        if own:
            counts[family] = len(own)
            files += write_dataset(out, family, own, provenance, meanings)
    total = sum(map(len, by_path.values()))
    return Cleaned(runs=total, superseded=total - len(runs), rows=counts, findings=findings, files=tuple(files))


def row_of(run: LabelRecord) -> DatasetRow:
    """The row of a run: the network from its id, and the measurements.

    Raises:
        DatasetError: the run contradicts its id. UsageError: the id is invalid.
    """
    config = parse_id(run.config_id)
    settings = {name: value for name, value in settings_of(config).items() if name not in _NOT_EXTRA}
    return check(
        DatasetRow(
            family=family_of(config),
            config_id=run.config_id,
            status=run.status,
            source=run.source,
            batch=config.batch,
            layers=layers_from_text(run.layers) or _rebuilt(config),
            group=config.shape,
            peak_bytes=run.peak_bytes,
            context_bytes=run.context_bytes,
            capacity_bytes=run.capacity_bytes,
            smact=run.smact,
            smocc=run.smocc,
            drama=run.drama,
            extras={**settings, "gpu": run.gpu},
        )
    )


def _rebuilt(config: Config) -> tuple[Layer, ...]:
    """The layers of a configuration; empty without torch."""
    try:
        from cotenant.learn.networks import building
    except ImportError:
        return ()
    return building.layers_of(config)


def _newest(runs: Sequence[LabelRecord]) -> Iterable[LabelRecord]:
    """The last run of each configuration."""
    return {run.config_id: run for run in runs}.values()


def _without(rows: Sequence[DatasetRow], findings: Sequence[DatasetProblem]) -> list[DatasetRow]:
    """The rows without the allowed repetitions, and with the saturated ones marked."""
    marked = any(problem.rule == "saturated" for problem in findings)
    seen: set[object] = set()
    clean_rows = []
    for row in rows:
        job = (row.source, row.batch, row.layers, row.extras.get("optimizer"), row.extras.get("precision"))
        keys = {(row.config_id, row.source)} | ({job} if row.layers else set())
        if keys & seen:
            continue
        seen |= keys
        clean_rows.append(replace(row, extras={**row.extras, "saturated": is_saturated(row)}) if marked else row)
    return clean_rows


def _file_note(path: Path, runs: Sequence[LabelRecord]) -> dict[str, object]:
    """Provenance of a file of runs."""
    file = path / FILE if path.is_dir() else path
    dates = sorted(run.at for run in runs)
    return {
        "path": str(file),
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "runs": len(runs),
        "from": dates[0] if dates else None,
        "to": dates[-1] if dates else None,
        "gpus": sorted({run.gpu for run in runs}),
        "torch": sorted({run.torch for run in runs} - {""}),
        "drivers": sorted({run.driver for run in runs} - {""}),
    }
