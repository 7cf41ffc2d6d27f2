"""`cotenant study export`: the runs of a study for other tools. One file for each verb."""

from __future__ import annotations

from pathlib import Path

from cotenant.cli.options import cli_argument, cli_command, cli_option, json_option
from cotenant.cli.output import emit_json, print_line
from cotenant.cli.parameter_types import PATH
from cotenant.cli.studies.options import experiment_option, mlflow_option
from cotenant.core.errors import UsageError


@cli_command("export")
@cli_argument("folder", type=PATH, metavar="DIR", help="Folder of the results of a study.")
@cli_option("--sqlite", type=PATH, metavar="FILE", help="Write one database.")
@cli_option("--parquet", type=PATH, metavar="DIR", help="Write a file for each table.")
@mlflow_option
@experiment_option
@json_option
def export(
    *, folder: Path, sqlite: Path | None, parquet: Path | None, mlflow: str | None, experiment: str, json: bool
) -> None:
    """Hand the runs of a study, with the GPU's metrics over time, to other tools.

    cotenant study export groups --sqlite groups.sqlite
    cotenant study export groups --mlflow http://localhost:5000
    """
    from cotenant.study.export import runs_of, to_parquet, to_sqlite
    from cotenant.study.mlflow_runs import to_mlflow

    if sqlite is None and parquet is None and mlflow is None:
        raise UsageError("nowhere to export to", hint="give `--sqlite FILE`, `--parquet DIR` or `--mlflow URI`")
    runs = runs_of(folder)
    written: list[str] = []
    if sqlite is not None:
        to_sqlite(runs, sqlite)
        written.append(str(sqlite))
    if parquet is not None:
        written += map(str, to_parquet(runs, parquet))
    if mlflow is not None:
        to_mlflow(runs, mlflow, experiment=experiment)
        written.append(mlflow)
    samples = sum(len(run.samples) for run in runs)
    if json:
        emit_json({"runs": len(runs), "samples": samples, "written": written})
        return
    print_line(f"{len(runs)} runs, {samples} samples: {', '.join(written)}")
