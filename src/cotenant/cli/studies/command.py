"""`cotenant study`: experiments of the literature, repeated here. A module of its own: each of its verbs has one."""

from __future__ import annotations

from cotenant.cli.options import cli_group
from cotenant.cli.studies import collocate as study_collocate
from cotenant.cli.studies import export as study_export
from cotenant.cli.studies import metrics as study_metrics
from cotenant.cli.studies import overhead as study_overhead


@cli_group(no_args_is_help=True)
def command() -> None:
    """Repeat studies of GPU monitoring and collocation on this machine.

    Every run is a row on the disk when it ends; after an interruption, continue with --resume. Each study draws the
    published figure beside its own.

      cotenant study overhead --out overhead
      cotenant study metrics --out metrics
      cotenant study collocate --out groups
    """


for _verb in (study_overhead.overhead, study_metrics.metrics, study_collocate.collocate, study_export.export):
    command.add_command(_verb)
