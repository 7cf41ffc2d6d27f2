"""`cotenant daemon repair`: one event of the journal, while no daemon runs."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from cotenant.cli.options import cli_command, cli_option, json_option
from cotenant.cli.output import emit_json, note, print_line
from cotenant.cli.parameter_types import PATH, integer
from cotenant.core.errors import UsageError


@cli_command()
@cli_option("--event", "seq", type=integer(minimum=1), metavar="N", help="The event of this number.")
@cli_option("--job", "job_id", type=integer(minimum=1), metavar="ID", help="List the events of this job.")
@cli_option("--skip", is_flag=True, help="Leave the event out from now on.")
@cli_option("--replace", type=PATH, metavar="FILE", help="Replace the event by the JSON in FILE; `-` is stdin.")
@cli_option("--restore", is_flag=True, help="Read the event again, as it was written.")
@cli_option("--state-dir", type=PATH, metavar="DIR", help="Folder of the daemon's journal.")
@json_option
def command(
    *,
    seq: int | None,
    job_id: int | None,
    skip: bool,
    replace: Path | None,
    restore: bool,
    state_dir: Path | None,
    json: bool,
) -> None:
    """Show, leave out or replace one event of the journal. The daemon must be stopped.

    Without --event it lists the events that cannot be read or applied, and those that were left out or replaced, by the
    daemon itself or here. No row of the journal is ever changed: a repair stands beside it, and --restore takes it
    back. Before each change the journal is copied to journal.db.backup-TIME.

      cotenant daemon repair                            what is wrong?
      cotenant daemon repair --job 5                    the events of job 5
      cotenant daemon repair --event 17                 its content, and what is lost without it
      cotenant daemon repair --event 17 --skip
      cotenant daemon repair --event 17 --replace fixed.json
    """
    from cotenant.daemon.config import loader
    from cotenant.daemon.config.paths import config_files
    from cotenant.daemon.repair import JournalRepair
    from cotenant.daemon.setup import state_folder

    if skip + (replace is not None) + restore > 1 or ((skip or replace or restore) and seq is None):
        raise UsageError("a repair is one of --skip, --replace and --restore, of one --event")
    if seq is not None and job_id is not None:
        raise UsageError("--event and --job exclude each other")
    config = loader.load(config_files(), os.environ, {})
    folder = state_folder(config) if state_dir is None else state_dir.absolute()
    with closing(JournalRepair(folder / "journal.db", config)) as repair:
        if seq is None:
            reports = list(repair.problems()) if job_id is None else repair.of_job(job_id)
            if not reports:
                repair.check_file()
            _list(reports, json=json)
            return
        report = repair.event(seq)
        backup = None
        if skip:
            backup = repair.skip(seq, "left out by hand")
        elif replace is not None:
            text = sys.stdin.read() if str(replace) == "-" else replace.read_text(encoding="utf-8")
            backup = repair.replace(seq, text, "replaced by hand")
        elif restore:
            backup = repair.restore(seq)
        if json:
            emit_json({"event": _as_json(report), "backup": None if backup is None else str(backup)})
            return
        _print(report, full=backup is None)
        if backup is not None:
            done = "left out" if skip else "replaced" if replace is not None else "read again"
            print_line(f"event {seq} is {done} from now on; the journal before: {backup}")


def _list(reports: list[Any], *, json: bool) -> None:
    if json:
        emit_json({"events": [_as_json(report) for report in reports]})
        return
    for report in reports:
        _print(report, full=False)
    if not reports:
        note("no such events: all can be read and applied, and none was left out")


def _print(report: Any, *, full: bool) -> None:
    print_line(f"event {report.seq}: {report.type} of job {report.job_id}")
    if report.problem is not None:
        print_line(f"  problem: {report.problem}")
    if report.repaired is not None:
        how = "replaced" if report.repaired.is_replaced else "left out"
        print_line(f"  {how}: {report.repaired.cause}, {report.repaired.error}")
        for line in report.repaired.trace.splitlines() if full else ():
            print_line(f"    {line}")
    print_line(f"  lost without it: {report.impact}")
    if full:
        print_line(f"  {report.body or 'its row is gone'}")


def _as_json(report: Any) -> dict[str, Any]:
    repaired = report.repaired
    return {
        "seq": report.seq,
        "type": report.type,
        "job_id": report.job_id,
        "body": report.body,
        "problem": report.problem,
        "impact": report.impact,
        "repair": None
        if repaired is None
        else {
            "is_replaced": repaired.is_replaced,
            "cause": repaired.cause,
            "error": repaired.error,
            "trace": repaired.trace,
        },
    }
