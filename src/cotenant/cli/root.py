"""The command `cotenant`: finds the verb, ours or a plug-in's, and imports only that one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import click

import cotenant
from cotenant.cli import ALIASES, COMMANDS, VERBS
from cotenant.cli.options import Group, cli_group
from cotenant.core.errors import UnknownName


class LazyGroup(Group):
    """A group whose verbs are imported when they are called; `--help` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (the signature is click's)
        """Names of all verbs, plug-ins last."""
        return list(listed_names())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The verb of that name or alias; None if there is none."""
        name = ALIASES.get(cmd_name, cmd_name)
        return load(name) if name in VERBS else None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The verb that `args` begin with.

        Raises:
            UnknownName: there is none; the message lists all.
        """
        name = args[0] if args else ""
        if name and not name.startswith("-") and ALIASES.get(name, name) not in VERBS and not ctx.resilient_parsing:
            raise UnknownName("command", name, [*VERBS.names(), *ALIASES])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write one line for each verb."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_lines()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Verbs with their lines, without an import of each; and options."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=line) for name, line in _lines() if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]


def listed_names() -> tuple[str, ...]:
    """Names of all verbs, plug-ins last."""
    return VERBS.names() if _has_plugins() else VERBS.builtin_names


def _has_plugins() -> bool:
    """Whether a distribution on `sys.path` may declare verbs.

    `importlib.metadata` says so too, but takes 25 ms to import, a third of `cotenant --help`. A distribution in a zip
    file is not found here; its verbs are not listed, but can be called.
    """
    mark = f"[{VERBS.group}]".encode()
    for folder in sys.path:
        try:
            names = os.listdir(folder)  # noqa: PTH208 (`Path` objects of all files would take longer)
        except OSError:
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                try:
                    with open(f"{folder}/{name}/entry_points.txt", "rb") as file:  # noqa: PTH123
                        if mark in file.read():
                            return True
                except OSError:
                    continue
    return False


def _lines() -> Iterator[tuple[str, str]]:
    for name in listed_names():
        yield name, COMMANDS[name][1] if name in COMMANDS else f"From {VERBS.provider(name)}"


def load(name: str) -> click.Command:
    """The verb `name`, imported now.

    Raises:
        UnknownName: there is none.
        PluginError: another distribution has it, and it cannot be imported.
    """
    command = VERBS.get(name)
    command.name = name
    return command


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001
    if value:
        print(f"cotenant {cotenant.__version__}")
        ctx.exit()


@cli_group("cotenant", cls=LazyGroup, no_args_is_help=True)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Print the version."
)
def root() -> None:
    """Estimate the GPU memory of training jobs without a GPU, and share GPU servers safely.

    cotenant estimate train.py                the memory it needs
    cotenant daemon --simulate 4xA100-40GB    start a daemon on simulated GPUs
    cotenant submit train.py --epochs 3       queue a script; its memory is estimated
    cotenant explain 1                        why job 1 waits
    cotenant logs -f 1                        its output, as it comes
    """
