"""The entry point: runs one command line and turns every error into a message, a hint and an exit code."""

from __future__ import annotations

import difflib
import errno
import os
import signal
import sys
from collections.abc import Sequence

import click

from cotenant.cli.completion import COMPLETE_VARIABLE
from cotenant.cli.output import report_error, wants_json
from cotenant.cli.parameter_types import spelling_of
from cotenant.cli.root import root
from cotenant.core.errors import CotenantError, UsageError

INTERRUPTED = 128 + signal.SIGINT


def main(argv: Sequence[str]) -> int:
    """Run one command line; its exit code. Errors are reported, never raised."""
    json = wants_json(argv)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # a test's or a caller's own stream may have none
        if reconfigure is not None:
            reconfigure(errors="surrogateescape")  # names of files that are not UTF-8 come out as they are
    try:
        code = _invoke(list(argv))
        sys.stdout.flush()
        return code
    except CotenantError as error:
        report_error(error, json=json)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader is gone. Without this, the interpreter complains at exit that it cannot flush stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        reported = _from_os_error(error, argv)
        report_error(reported, json=json)
        return reported.exit_code
    except click.ClickException as error:
        return _report_click_error(error, argv, json=json)


def _invoke(argv: list[str]) -> int:
    """`click.Command.main`, without its handling of Ctrl-C (a blank line) and of broken pipes (exit code 1)."""
    instruction = os.environ.get(COMPLETE_VARIABLE)
    if instruction:
        from click.shell_completion import shell_complete

        return shell_complete(root, {}, "cotenant", COMPLETE_VARIABLE, instruction)
    try:
        with root.make_context("cotenant", argv) as context:
            code = root.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    return code if isinstance(code, int) else 0


_PATH_ERRORS = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)
_DISK_HINTS = {
    errno.ENOSPC: "free some space there, or name a folder on another disk",
    errno.EDQUOT: "your quota of that disk is used up: free some space there, or name a folder on another disk",
    errno.EROFS: "name a folder on a disk that can be written to",
}
"""What to do where a disk takes no more."""


def _from_os_error(error: OSError, argv: Sequence[str]) -> CotenantError:
    """An error of the system as one of ours: a wrong request if the command line names the file, else a failure."""
    where = f": `{error.filename}`" if error.filename else ""
    message = f"{(error.strerror or type(error).__name__).lower()}{where}"
    if not (error.filename and isinstance(error, _PATH_ERRORS)):
        return CotenantError(message, hint=_DISK_HINTS.get(error.errno or 0))
    path = os.path.abspath(os.fsdecode(error.filename))  # noqa: PTH100 - `..` and links stay as they were written
    words = [word for argument in argv for word in argument.split("=", 1)]  # of `--out=DIR` too
    for before, word in zip(["", *words], words, strict=False):
        if word and os.path.abspath(word) == path:  # noqa: PTH100
            option = f"`{before}`: " if before.startswith("-") and before != "--" else ""
            return UsageError(option + message, hint="name another file or folder")
    return CotenantError(message)


def _report_click_error(error: click.ClickException, argv: Sequence[str], *, json: bool) -> int:
    """Report an error of click's parser as one of ours."""
    context = getattr(error, "ctx", None) or _context_of(argv)
    if type(error).__name__ == "NoArgsIsHelpError":  # click 8.2 and later; before, `make_context` exits by itself
        print(context.get_help(), file=sys.stderr)
        return UsageError.exit_code
    reported = UsageError(_message(error), hint=_hint(error, context))
    report_error(reported, json=json)
    return reported.exit_code


def _context_of(argv: Sequence[str]) -> click.Context:
    """The context of the command that words name: an option without its argument is reported without one.

    Source: click/parser.py, `_OptionParser._get_value_from_state`.
    """
    context = click.Context(root, info_name="cotenant")
    for word in argv:
        if not isinstance(context.command, click.Group):
            break
        command = context.command.get_command(context, word)
        if command is not None:
            context = click.Context(command, info_name=word, parent=context)
    return context


def _message(error: click.ClickException) -> str:
    """What was found and what was wanted, in our words."""
    if isinstance(error, click.NoSuchOption):
        return f"no such option: `{error.option_name}`"
    if isinstance(error, click.MissingParameter):
        return f"`{_where(error)}` is missing"
    if isinstance(error, click.BadParameter):
        return f"`{_where(error)}`: {_plain(error.message)}"
    return _plain(error.format_message().removeprefix("Option "))  # `Option '--x' requires an argument.`


def _where(error: click.BadParameter) -> str:
    if error.param is not None:
        return spelling_of(error.param)
    return error.param_hint if isinstance(error.param_hint, str) else "argument"


def _plain(message: str) -> str:
    return (message[:1].lower() + message[1:].rstrip(".")).replace("'", "`")


def _hint(error: click.ClickException, context: click.Context) -> str:
    """What to do about an error of click's parser."""
    where = context.command_path
    if not isinstance(error, click.NoSuchOption):
        return f"see `{where} --help`"
    takes_script_arguments = any(parameter.metavar == "[-- ARGS]" for parameter in context.command.params)
    if takes_script_arguments and error.option_name == "-m":
        return f"a module follows its launcher: `{where} -- python -m package.train`"
    if takes_script_arguments:
        return f"options of the script follow `--`: `{where} train.py -- {error.option_name}`; see `{where} --help`"
    # click suggests at a ratio of 0.6, where `--polcy` becomes `--hold`.
    close = difflib.get_close_matches(error.option_name, error.possibilities or (), n=1, cutoff=0.7)
    if close:
        return f"did you mean `{close[0]}`? see `{where} --help`"
    return f"see `{where} --help`"


def run() -> None:
    """The `cotenant` executable. SIGTERM and SIGHUP end it like an error, so that temporary files are removed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the caller closed it, as `>&-` of a shell does
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - open until the end
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _exit_on_signal)
    sys.exit(main(sys.argv[1:]))


def _exit_on_signal(number: int, frame: object) -> None:  # noqa: ARG001 (the signature is a signal handler's)
    raise SystemExit(128 + number)
