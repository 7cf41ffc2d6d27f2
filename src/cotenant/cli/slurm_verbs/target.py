"""Where `sbatch`, `squeue`, `scancel`, `sinfo` and `sacct` go: to our daemon, or to a Slurm that is installed here.

`--to` decides, else $COTENANT_TO. Without either it is a daemon if one is named or has its socket here, else a Slurm
that finds its configuration, with a note that says so.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from cotenant.cli.options import CONNECTION, Command, cli_option
from cotenant.cli.output import note
from cotenant.core.errors import UsageError
from cotenant.jobfiles.sbatch import SbatchOption

if TYPE_CHECKING:
    from cotenant.slurm.installation import SlurmInstallation

SchedulerTarget = Literal["daemon", "slurm"]
TARGET_VARIABLE = "COTENANT_TO"
TARGETS: tuple[SchedulerTarget, ...] = ("daemon", "slurm")
OPTION = "--to"
HELP = f"daemon or slurm; also ${TARGET_VARIABLE}. By default a daemon that is here, else Slurm if it is."


SLURM_OPTIONS = {
    option.name: option
    for option in (
        *(SbatchOption(name=name) for name in ("add", "gpu", "shard-size")),
        *(SbatchOption(name=name, value="none") for name in ("dry-run", "no-estimate", "no-watch")),
    )
}
"""Options for a real Slurm that sbatch does not have."""

target_option = cli_option(OPTION, metavar="daemon|slurm", expose_value=False, help=HELP, section=CONNECTION)
"""Shown in help texts; `RoutedCommand` reads it."""


def choose_target(named: str | None, *, names_daemon: bool = False) -> SlurmInstallation | None:
    """The Slurm that a command goes to; None: our daemon. `named`: the value of `--to`.

    `names_daemon`: other options name a daemon.

    Raises:
        UsageError: there is no such target, or Slurm is named and is not here.
    """
    from cotenant.slurm.installation import find_installation

    named = named or os.environ.get(TARGET_VARIABLE) or None
    if named is not None and named not in TARGETS:
        raise UsageError(f"`{OPTION}` must be {' or '.join(TARGETS)}, got `{named}`")
    if named == "slurm":
        return find_installation()
    if named == "daemon" or names_daemon or _has_daemon():
        return None
    try:
        slurm = find_installation()
    except UsageError:
        return None
    note(
        f"to {slurm.version} in {slurm.folder}: no daemon is here (set {TARGET_VARIABLE}, or give {OPTION}, to decide)"
    )
    return slurm


def _has_daemon() -> bool:
    from cotenant.daemon.config.paths import socket_path

    return bool(os.environ.get("COTENANT_HOST")) or socket_path().exists()


class RoutedCommand(Command):
    """A verb of Slurm: for a daemon it is as it is written; for a Slurm, `to_slurm` gets the words unparsed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Find out where the command goes, and parse it unless that is Slurm."""
        if ctx.resilient_parsing or "--help" in args:
            return super().parse_args(ctx, args)
        named, rest = split_target(args)
        names_daemon = any(word.split("=")[0] in ("--socket", "--host") for word in rest)
        slurm = choose_target(named, names_daemon=names_daemon)
        if slurm is None:
            return super().parse_args(ctx, rest)
        ctx.meta[__name__] = (slurm, rest)
        return []

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        if __name__ not in ctx.meta:
            return super().invoke(ctx)
        from cotenant.cli.slurm_verbs import cluster as slurm_cluster

        slurm, words = ctx.meta[__name__]
        return slurm_cluster.run_verb(str(ctx.info_name), slurm, words)


def split_target(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The value of `--to` in `words`, and the other words.

    Raises:
        UsageError: it has no value.
    """
    rest: list[str] = []
    named: str | None = None
    place = 0
    while place < len(words):
        word = words[place]
        if word == OPTION:
            if place + 1 == len(words):
                raise UsageError(f"`{OPTION}` has no value", hint=f"write {OPTION} slurm")
            place += 1
            named = words[place]
        elif word.startswith(f"{OPTION}="):
            named = word.partition("=")[2]
        else:
            rest.append(word)
        place += 1
    return named, rest
