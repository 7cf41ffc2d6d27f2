"""`cotenant squeue`, `sacct`, `scancel` and `sinfo` on a real Slurm: its own answers, with what we know of the jobs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from cotenant.cli.output import Column, emit_json, note, print_table
from cotenant.core.errors import BackendError
from cotenant.core.units import format_bytes, format_energy
from cotenant.slurm.installation import SlurmInstallation
from cotenant.slurm.job_records import JobRecords
from cotenant.slurm.job_views import joined_accounting, joined_queue

_OWN_FORMAT = {
    "squeue": ("-o", "--format", "-O", "--Format", "-i", "--iterate", "-s", "--steps", "--yaml", "--start", "-V"),
    "sacct": ("-o", "--format", "-p", "-P", "--parsable", "--parsable2", "--delimiter", "--yaml", "-e", "-V", "-l"),
}
"""Options with which Slurm's own command answers."""
_COLUMNS = {
    "squeue": "JOBID PARTITION NAME USER ST TIME NODES PROMISED SEEN ENERGY NODELIST(REASON)",
    "sacct": "JOBID NAME STATE EXITCODE ELAPSED PROMISED SEEN ENERGY NEXT",
}


def run_verb(verb: str, slurm: SlurmInstallation, words: Sequence[str]) -> int:
    """Run one of Slurm's verbs with its own options; `squeue` and `sacct` in their usual format with our columns.

    With an option for another format, and for all other verbs, Slurm's own program takes the place of this process.
    """
    if verb not in _COLUMNS or any(_is_option(word, _OWN_FORMAT[verb]) for word in words):
        program = slurm.program(verb)
        sys.stdout.flush()
        os.execv(program, [program, *words])  # noqa: S606 (the user's own words, without a shell)
    json = "--json" in words
    header = not {"-h", "--noheader", *(("-n",) if verb == "sacct" else ())} & set(words)
    rest = [word for word in words if word not in ("--json", "-h", "--noheader")]
    records = JobRecords.of_cluster(slurm.cluster_name())
    rows = _rows(verb, slurm, records, rest)
    if json:
        emit_json({"jobs": rows})
        return 0
    titles = _COLUMNS[verb].split()
    columns = [
        Column(key=title.lower(), title=title, right=title in ("PROMISED", "SEEN", "ENERGY")) for title in titles
    ]
    print_table([_cells(row) for row in rows], columns, header=header)
    return 0


def _is_option(word: str, options: Sequence[str]) -> bool:
    """Whether `word` is one of `options`, alone or with its value."""
    return any(
        word == option or (word.startswith(f"{option}=") if option.startswith("--") else word.startswith(option))
        for option in options
        if word.startswith("-") and word.startswith("--") == option.startswith("--")
    )


def _rows(verb: str, slurm: SlurmInstallation, records: JobRecords, words: Sequence[str]) -> list[dict[str, Any]]:
    if verb == "squeue":
        return joined_queue(slurm, records, words)
    try:
        return joined_accounting(slurm, records, words)
    except BackendError as error:
        if "accounting" not in error.message.lower():
            raise
        note("note: this Slurm stores no accounting: listed are jobs that slurmctld still has, and those watched by us")
        rows = joined_queue(slurm, records, ["-t", "all", "--me"], and_recorded=True)
        ids = job_ids_of(words)
        return [row for row in rows if not ids or ids & {row["job_id"], row["raw_id"], row["job_id"].partition("_")[0]}]


def job_ids_of(words: Sequence[str]) -> set[str]:
    """The jobs that `-j` of sacct names, without their steps; empty for all."""
    found: set[str] = set()
    for word, following in zip(words, [*words[1:], ""], strict=False):
        value = following if word in ("-j", "--jobs") else ""
        if word.startswith("--jobs="):
            value = word.removeprefix("--jobs=")
        elif word.startswith("-j"):
            value = word.removeprefix("-j") or value
        found |= {job.partition(".")[0] for job in value.split(",")}
    return found - {""}


def _cells(row: dict[str, Any]) -> dict[str, str]:
    text = {key: "" if value is None else str(value) for key, value in row.items()}
    return {
        **text,
        "jobid": text["job_id"],
        "st": text.get("state_short", ""),
        "nodelist(reason)": text.get("where", ""),
        "exitcode": text.get("exit_code", ""),
        "next": text["resubmitted_as"] or "-",
        "promised": format_bytes(row["promised_bytes"]),
        "seen": format_bytes(row["seen_bytes"]),
        "energy": format_energy(row["energy_j"]),
    }
