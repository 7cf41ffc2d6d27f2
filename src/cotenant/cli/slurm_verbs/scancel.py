"""`cotenant scancel`: cancels jobs, or signals them."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from cotenant.cli.common import Connection, connection_options, report_outcome
from cotenant.cli.options import cli_argument, cli_command, cli_option, json_option, option_group
from cotenant.cli.output import note
from cotenant.cli.parameter_types import Parsed
from cotenant.cli.slurm_verbs import fields
from cotenant.cli.slurm_verbs.selection import CONTEXT, Selection
from cotenant.cli.slurm_verbs.target import RoutedCommand, target_option
from cotenant.core.errors import CotenantError, NoSuchJob, UsageError
from cotenant.core.units import shortened
from cotenant.daemon.client import error_of


def parse_signal(text: str) -> int:
    """The number of a signal: `USR1`, `SIGUSR1`, `usr1`, `10`, `RTMIN+3`.

    Raises:
        UsageError: there is no such signal.
    """
    word = text.strip().upper().removeprefix("SIG")
    name, plus, offset = word.partition("+")
    digits = offset if plus else word
    number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 4 else None
    if plus:
        number = signal.SIGRTMIN + number if name == "RTMIN" and number is not None else None
    elif f"SIG{word}" in signal.Signals.__members__:
        number = signal.Signals[f"SIG{word}"].value
    if number is None or number not in signal.valid_signals():
        names = ", ".join(found.removeprefix("SIG") for found in signal.Signals.__members__ if "RT" not in found)
        raise UsageError(f"unknown signal `{shortened(text)}`", hint=f"write a number or one of {names}")
    return number


@cli_command(context_settings=CONTEXT, cls=RoutedCommand)
@target_option
@cli_argument("jobs", nargs=-1, metavar="[JOB...]", help="Ids of jobs, arrays (17) and their tasks (17_[1-3]).")
@option_group("selection", Selection)
@cli_option("-v", "--verbose", is_flag=True, help="Print the id of each job.")
@cli_option("-Q", "--quiet", is_flag=True, help="Report no job that is unknown or over.")
@cli_option(
    "-s",
    "--signal",
    "number",
    type=Parsed("signal", parse_signal),
    metavar="NAME|NUMBER",
    help="Send this signal in place of cancelling; KILL cancels.",
)
@cli_option("-b", "--batch", is_flag=True, help="With --signal: to the first process of the job only.")
@cli_option("-f", "--full", is_flag=True, help="With --signal: to all processes, a shell that runs the others too.")
@json_option
@connection_options
def scancel(
    jobs: Sequence[str],
    selection: Selection,
    *,
    verbose: bool,
    quiet: bool,
    number: int | None,
    batch: bool,
    full: bool,
    json: bool,
    connection: Connection,
) -> int:
    """Cancel jobs, or signal them, as Slurm's scancel does: by id, or all that pass the filters.

    A signal goes to running jobs. Those of `sbatch` have no steps here: it reaches the programs that a batch script
    runs, but not the shell that runs the script.

      cotenant scancel 17 18_[1-3]
      cotenant scancel --me -t PD
      cotenant scancel -u ann --name sweep
      cotenant scancel --signal USR1 17
    """
    if not jobs and selection.is_empty:
        raise UsageError("no job identification provided", hint="give ids, or a filter such as --me")
    client = connection.client()
    failures: list[CotenantError] = []
    found: list[str] = []
    ids: set[int] = set()
    for ref in fields.expand_refs(jobs):
        try:
            ids.update(client.ids([ref]))
            found.append(ref)
        except NoSuchJob:
            failures.append(CotenantError(f"kill job error on job id {ref}: invalid job id specified"))
    if not selection.is_empty:
        selected = selection.of(client.jobs(active=True))
        found = [job["label"] for job in selected if not jobs or job["id"] in ids]
    is_cancel = number in (None, signal.SIGKILL)
    if is_cancel:
        views, problems = client.change_many("cancel", found) if found else ([], [])
    else:
        target = "all" if full else "command" if batch else "programs"
        views, problems = client.signal(int(number or 0), found, target=target) if found else ([], [])
    failures += [error_of(problem) for problem in problems]
    if verbose:
        for view in views:
            note(f"scancel: {'terminating' if is_cancel else f'signal {number} to'} job {view['label']}")
    return min(1, report_outcome(views, [] if quiet else failures, json=json))
