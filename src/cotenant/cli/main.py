"""The entry point: finds the command, and turns every error into a message, a hint and an exit code."""

from __future__ import annotations

import copy
import importlib
import math
import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
import typer.core
import typer.main

import cotenant
from cotenant.cli import ALIASES, COMMANDS
from cotenant.cli.output import report_error, wants_json
from cotenant.core.errors import CotenantError, UnknownName, UsageError

COMPLETE = "_COTENANT_COMPLETE"
"""Set by the completion of shells, which click answers."""

INTERRUPTED = 128 + signal.SIGINT


class LazyGroup(typer.core.TyperGroup):
    """A group whose commands are imported when they are called; `--help` imports none of them."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 (the signature is click's)
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        name = ALIASES.get(cmd_name, cmd_name)
        return load(name) if name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and ALIASES.get(args[0], args[0]) not in COMMANDS and not args[0].startswith("-"):
            raise UnknownName("command", args[0], [*COMMANDS, *ALIASES])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


def load(name: str) -> Any:
    """The click command registered as `name`, imported now."""
    module = importlib.import_module(COMMANDS[name][0])
    from cotenant.cli.common import with_host

    app = getattr(module, "app", None)
    if app is None:
        app = new_app()
        context = {"help_option_names": ["-h", "--help"], **getattr(module, "CONTEXT", {})}
        app.command(name, context_settings=context)(with_host(module.command))
    for each in app.registered_commands:
        each.callback = each.callback and with_host(each.callback)
    found: Any = typer.main.get_command(app)
    found.name = name
    for each in (found, *getattr(found, "commands", {}).values()):
        for option in each.params:
            option.type = _finite(option.type)
    return _with_layout(found)


def _finite(kind: Any) -> Any:
    """A type of click's as it is; one of numbers without `nan` and `inf`, which no limit refuses."""
    if kind.name not in ("float", "float range"):
        return kind
    convert, kind = kind.convert, copy.copy(kind)

    def checked(value: Any, param: Any, context: Any) -> Any:
        found = convert(value, param, context)
        if not math.isfinite(found):
            kind.fail(f"{value} is no number to count with", param, context)
        return found

    kind.convert = checked
    return kind


def _with_layout(command: Any) -> Any:
    """`command`, with the examples in its help text printed line by line and indented, not filled."""
    for each in (command, *getattr(command, "commands", {}).values()):
        each.help = "\n\n".join(_example(text) or text for text in (each.help or "").split("\n\n"))
    return command


def _example(paragraph: str) -> str | None:
    """`paragraph` with click's mark for what it must not fill; None if it is prose."""
    lines = paragraph.split("\n")
    if not lines[0].lstrip().startswith(("cotenant ", "$ ")):
        return None
    indent = "" if lines[0].startswith(" ") else "  "
    return "\n".join(["\b", *(indent + line for line in lines)])


def new_app(**settings: Any) -> typer.Typer:
    """A `Typer` with the settings that all of ours share (plain help text, so that rich is not imported)."""
    return typer.Typer(
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **settings,
    )


app = typer.Typer(
    cls=LazyGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:
    if value:
        print(f"cotenant {cotenant.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Estimate the GPU memory of training jobs without a GPU, and share GPU servers safely.

    cotenant daemon --simulate 4xA100-40GB    start a daemon on simulated GPUs
    cotenant submit train.py --epochs 3       queue a script; its memory is estimated
    cotenant explain 1                        why it waits
    cotenant logs -f 1                        its output, as it comes
    """


def main(argv: Sequence[str]) -> int:
    """Run one command line; its exit code. Errors are reported, never raised."""
    json = wants_json(argv)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # a test's or a caller's own stream may have none
        if reconfigure is not None:
            reconfigure(errors="surrogateescape")  # names of files that are no UTF-8 come out as they are
    try:
        code = _invoke(_with_layout(typer.main.get_command(app)), list(argv))
        sys.stdout.flush()
        return code
    except CotenantError as error:
        report_error(error, json=json)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read us has gone; without this, the interpreter complains at exit that it cannot flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        told = _as_cotenant_error(error, argv)
        report_error(told, json=json)
        return told.exit_code
    except Exception as error:
        if not hasattr(error, "format_message"):  # click's own errors have it, in every version
            raise
        return _usage(error, json=json)


def _invoke(command: Any, argv: list[str]) -> int:
    """What click's `main` does, without its own ideas of Ctrl-C and of broken pipes."""
    if COMPLETE in os.environ:
        os.environ["COLUMNS"] = "1000"  # a help text that is broken into lines becomes several words to complete
        command.main(argv, prog_name="cotenant")
    if any(each.startswith(("--install-completion", "--show-completion")) for each in argv):
        _complete_at_once()
    try:
        with command.make_context("cotenant", argv) as context:
            code = command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    return code if isinstance(code, int) else 0


_ZSH_AUTOLOADED = """
if [ "$funcstack[1]" = "_%(prog_name)s" ]; then
  %(complete_func)s "$@"
fi
"""


def _complete_at_once() -> None:
    """Let zsh complete at the first TAB of a shell too: what typer installs only defines the function then."""
    from typer import _completion_shared as shared

    scripts: dict[str, str] = getattr(shared, "_completion_scripts", {})
    if "funcstack" not in scripts.get("zsh", "funcstack"):
        scripts["zsh"] += _ZSH_AUTOLOADED


_WRONG_PATH = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)


def _as_cotenant_error(error: OSError, argv: Sequence[str]) -> CotenantError:
    """An error of the system; the request is wrong where it is about a file that the command line names."""
    where = f": `{error.filename}`" if error.filename else ""
    told = f"{(error.strerror or type(error).__name__).lower()}{where}"
    if not (error.filename and isinstance(error, _WRONG_PATH)):
        return CotenantError(told)
    path = os.path.abspath(os.fsdecode(error.filename))  # noqa: PTH100 - `..` and links stay as they were written
    words = [word for each in argv for word in each.split("=", 1)]  # of `--out=DIR` too
    for before, word in zip(["", *words], words, strict=False):
        if word and os.path.abspath(word) == path:  # noqa: PTH100
            option = f"`{before}`: " if before.startswith("-") and before != "--" else ""
            return UsageError(option + told, hint="name another file or folder")
    return CotenantError(told)


_OF_CLICK = re.compile(r"not a valid (int|float)\w*( range)?")
"""How click says that something is no number."""


def _usage(error: Any, *, json: bool) -> int:
    """Report an error of click's parser as one of ours."""
    context = getattr(error, "ctx", None)
    message = error.format_message()
    if not message or type(error).__name__ == "NoArgsIsHelpError":
        print(context.get_help() if context is not None else message, file=sys.stderr)
        return UsageError.exit_code
    where = context.command_path if context is not None else "cotenant"
    text = message[:1].lower() + message[1:].rstrip(".")
    text = text.replace("(Possible options: ", "(near: ")
    text = _OF_CLICK.sub(lambda found: f"no {'whole ' if found[1] == 'int' else ''}number", text)
    report_error(UsageError(text.replace("'", "`"), hint=_usage_hint(error, where)), json=json)
    return UsageError.exit_code


def _usage_hint(error: Any, where: str) -> str:
    """What to do about an error of click's parser in the command `where`."""
    takes = [each.metavar for each in error.ctx.command.params] if getattr(error, "ctx", None) is not None else []
    unknown = getattr(error, "option_name", None)
    if type(error).__name__ == "NoSuchOption" and "[-- ARGS]" in takes:
        return f"see `{where} --help`; options of the script follow `--`: `{where} train.py -- {unknown}`"
    return f"see `{where} --help`"


def run() -> None:
    """The `cotenant` executable. Told to end, it leaves as on an error, so that its temporary files go with it."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _leave)
    sys.exit(main(sys.argv[1:]))


def _leave(number: int, frame: object) -> None:  # noqa: ARG001 - the signature is a signal handler's
    raise SystemExit(128 + number)
