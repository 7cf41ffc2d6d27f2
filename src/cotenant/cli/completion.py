"""Shell completion: what the shell offers for ids, GPUs and policies, and the verb that prints the script."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cotenant.cli.options import cli_argument, cli_command, cli_option
from cotenant.cli.output import emit_json, note
from cotenant.core.errors import CotenantError, UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMPLETE_VARIABLE = "_COTENANT_COMPLETE"
"""The environment variable by which the script of a shell requests completions."""

MAX_JOBS = 200
TIMEOUT_S = 2.0
"""Jobs that completion offers, and the longest time that a shell waits for them."""

_UNSAFE = re.compile(r"[^\w.,+=@%-]+")


def complete_job_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of jobs, newest first; none if no daemon answers.

    A shell evaluates what it receives, and names may be another user's: only letters, digits and a few signs pass.
    """
    del ctx, param
    from cotenant.daemon.client import Client

    try:
        jobs = Client(timeout_s=TIMEOUT_S).jobs(last=MAX_JOBS)
    except CotenantError:
        return []
    labels = {job["label"]: f"{_UNSAFE.sub('_', job['name'])} {job['state'].lower()}" for job in reversed(jobs)}
    return _items(incomplete, labels)


def complete_gpu_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of GPU models."""
    del ctx, param
    return _items(incomplete, _gpu_names())


def complete_server(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """A number of GPUs of one model: `4xA100-40GB`."""
    del ctx, param
    count = incomplete.partition("x")[0] if incomplete[:1].isdigit() else "4"
    return _items(incomplete, {f"{count}x{name}": text for name, text in _gpu_names().items()})


def complete_policies(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of policies; of a list with commas, its last word."""
    del ctx, param
    from cotenant.scheduling.policies import policies

    return _list_items(incomplete, policies())


def complete_estimators(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of estimators."""
    del ctx, param
    from cotenant.estimators import ESTIMATORS

    return _items(incomplete, dict.fromkeys(ESTIMATORS))


def complete_states(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """States of jobs; of a list with commas, its last word."""
    del ctx, param
    from cotenant.daemon.api.views.states import SHORT

    return _list_items(incomplete, SHORT)


def _gpu_names() -> dict[str, str]:
    from cotenant.core.units import format_bytes
    from cotenant.gpu_specs import all_gpu_specs

    return {spec.name: format_bytes(spec.memory_total_bytes).replace(" ", "") for spec in all_gpu_specs()}


def _items(incomplete: str, texts: Mapping[str, str | None]) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(word, help=text) for word, text in texts.items() if word.startswith(incomplete)]


def _list_items(incomplete: str, words: Iterable[str]) -> list[CompletionItem]:
    before, comma, _ = incomplete.rpartition(",")
    return _items(incomplete, dict.fromkeys(before + comma + word for word in words))


@cli_command()
@cli_argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="SHELL", help="bash, zsh or fish.")
@cli_option("--install", is_flag=True, help="Write it to where the shell looks for completions.")
@cli_option("--json", is_flag=True, help="Print one JSON value instead of text.")
@click.pass_context
def command(context: click.Context, shell: str, *, install: bool, json: bool) -> None:
    """Print the completion script of a shell: verbs, options, ids of jobs, GPUs, policies.

    $ eval "$(cotenant completion bash)"
    $ cotenant completion zsh > ~/.zfunc/_cotenant
    $ cotenant completion fish --install
    """
    script = completion_script(shell, context.find_root().command)
    path = install_path(shell, os.environ)
    if install:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script, encoding="utf-8")
        note(f"written to `{path}`; a new shell completes `cotenant`")
        if shell == "zsh":
            note(f"hint: zsh needs, before `compinit`: fpath+=({path.parent})")
    if json:
        emit_json({"shell": shell, "script": script, "path": str(path) if install else None})
    elif not install:
        print(script, end="")


def completion_script(shell: str, program: click.Command) -> str:
    """The script that makes `shell` ask `cotenant` for completions.

    Raises:
        UsageError: no such shell is known.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise UsageError(f"no completion for `{shell}`", hint="known: bash, zsh, fish")
    completion = kind(program, {}, "cotenant", COMPLETE_VARIABLE)
    # Not `completion.source()`: click's for bash runs `bash` to check its version, which a package build need not have.
    return completion.source_template % completion.source_vars()


def install_path(shell: str, env: Mapping[str, str]) -> Path:
    """The file in which the shell of one user looks for the completion of `cotenant`.

    Sources: bash-completion, README.md, "FAQ" (`$XDG_DATA_HOME/bash-completion/completions`); fish, "Where to put
    completions" (`$XDG_CONFIG_HOME/fish/completions`). zsh knows no such folder of a user: `fpath` must name ours.
    """
    home = Path(env.get("HOME") or "~").expanduser()
    data = Path(env.get("XDG_DATA_HOME") or home / ".local" / "share")
    config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    return {
        "bash": data / "bash-completion" / "completions" / "cotenant",
        "fish": config / "fish" / "completions" / "cotenant.fish",
        "zsh": data / "zsh" / "site-functions" / "_cotenant",
    }[shell]
