"""`cotenant config`: the daemon's configuration."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from cotenant.cli.options import cli_argument, cli_group, cli_option, json_option
from cotenant.cli.output import emit_json
from cotenant.cli.parameter_types import PATH
from cotenant.core.errors import UsageError
from cotenant.daemon.config import loader
from cotenant.daemon.config.paths import config_files


@cli_group(no_args_is_help=True)
def command() -> None:
    """Show and check the daemon's configuration.

    Later ones win: defaults, /etc/cotenant/config.toml, ~/.config/cotenant/config.toml, variables such as
    COTENANT_DAEMON__TICK_S (COTENANT_SECTION__KEY), options of `cotenant daemon`.

    $ cotenant config show --origin
    $ cotenant config check ./config.toml
    """


@command.command("show")
@cli_option("--origin", is_flag=True, help="Show where each value comes from.")
@json_option
def show(*, origin: bool, json: bool) -> None:
    """Show the configuration of a daemon that is started here and now, without options.

    cotenant config show --origin
    """
    values = loader.effective_values(config_files(), os.environ)
    if json:
        settings = [
            {"section": value.section, "key": value.key, "value": value.value, "origin": value.origin}
            for value in values
        ]
        emit_json({"settings": settings})
        return
    lines = [_line(value) for value in values]
    width = max(map(len, lines))
    section = ""
    for value, line in zip(values, lines, strict=True):
        if value.section != section:
            print(f"{section and chr(10)}[{value.section}]")
            section = value.section
        print(f"{line:<{width}}  # {value.origin}" if origin else line)


@command.command("check")
@cli_argument("files", nargs=-1, type=PATH, metavar="[FILE...]", help="Files to check; by default those in effect.")
@json_option
def check(files: Sequence[Path], *, json: bool) -> None:
    """Check whether a daemon would start with these files, without starting it.

    cotenant config check ./config.toml
    """
    from cotenant.daemon.config.validation import check_config

    checked = list(files) or [path for path in config_files() if path.exists()]
    for path in files:
        if not path.exists():
            raise UsageError(f"no file `{path}`")
    config = loader.load(checked, {} if files else os.environ, {})
    check_config(config)
    if json:
        emit_json({"files": [str(path) for path in checked], "ok": True})
        return
    for path in checked:
        print(f"{path}: ok")
    if not checked:
        print("no configuration file; defaults are in effect")


def _line(value: loader.ConfigValue) -> str:
    """The value as a line of a file; a comment if it is not set."""
    if value.value is None:
        return f"# {value.key} is not set"
    return f"{value.key} = {_toml(value.value)}"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"{value:g}" if isinstance(value, float) else str(value)
