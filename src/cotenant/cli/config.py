"""`cotenant config`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cotenant.cli.common import Json
from cotenant.cli.main import new_app
from cotenant.cli.output import emit_json
from cotenant.core.errors import UsageError
from cotenant.daemon.config import loader as configuration
from cotenant.daemon.config.paths import config_files

app = new_app(no_args_is_help=True)


@app.callback()
def _root() -> None:
    """The daemon's configuration: what is in effect, where it comes from, and whether a file is right.

    Defaults < /etc/cotenant/config.toml < ~/.config/cotenant/config.toml < COTENANT_SECTION__KEY in the environment
    < flags of `cotenant daemon`.

    $ cotenant config show --origin
    $ cotenant config check ./config.toml
    """


@app.command("show")
def show(
    *,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")] = False,
    json: Json = False,
) -> None:
    """What a daemon would run with if it were started now and here, without flags.

    cotenant config show --origin
    """
    found = configuration.effective_values(config_files(), os.environ)
    if json:
        emit_json(
            {"settings": [{"section": s.section, "key": s.key, "value": s.value, "origin": s.origin} for s in found]}
        )
        return
    lines = [_line(each) for each in found]
    width = max(map(len, lines))
    section = ""
    for each, line in zip(found, lines, strict=True):
        if each.section != section:
            print(f"{section and chr(10)}[{each.section}]")
            section = each.section
        print(f"{line:<{width}}  # {each.origin}" if origin else line)


@app.command("check")
def check(
    files: Annotated[list[Path] | None, typer.Argument(metavar="[FILE...]", help="By default those in effect.")] = None,
    *,
    json: Json = False,
) -> None:
    """See whether a daemon would start with these files, as far as that can be told without starting it.

    cotenant config check ./config.toml
    """
    from cotenant.daemon.config.validation import check_config

    named = files or [each for each in config_files() if each.exists()]
    for path in files or ():
        if not path.exists():
            raise UsageError(f"no file `{path}`")
    config = configuration.load(named, {} if files else os.environ, {})
    check_config(config)
    if json:
        emit_json({"files": [str(each) for each in named], "ok": True})
        return
    for each in named:
        print(f"{each}: ok")
    if not named:
        print("no configuration file; defaults are in effect")


def _line(setting: configuration.ConfigValue) -> str:
    """As it stands in a file; a comment where there is no value."""
    if setting.value is None:
        return f"# {setting.key} is not set"
    return f"{setting.key} = {_toml(setting.value)}"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"{value:g}" if isinstance(value, float) else str(value)
