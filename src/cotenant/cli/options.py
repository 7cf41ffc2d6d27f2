"""Groups of options, declared once: dataclasses whose fields are click parameters.

A command takes an instance of each of its groups:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Paging:
        SECTION: ClassVar[str] = "Paging"

        page: int = option("--page", type=integer(minimum=1), default=1, metavar="N", help="Page to show.")


    @cli_command()
    @option_group("paging", Paging)
    def command(paging: Paging) -> None: ...
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

ARGUMENTS, OPTIONS, CONNECTION = "Arguments", "Options", "Connection"
"""Sections of help texts; groups have others."""


class Option(click.Option):
    """An option that belongs to a section of the help text."""

    def __init__(self, declarations: Sequence[str] | None = None, *, section: str = OPTIONS, **settings: Any) -> None:
        super().__init__(declarations, **settings)
        self.section = section


class Argument(click.Argument):
    """An argument with a help text: click's own has none before version 8.5."""

    def __init__(self, declarations: list[str], *, help: str = "", **settings: Any) -> None:  # noqa: A002 (click's word)
        super().__init__(declarations, **settings)
        self.help: str = help

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:  # noqa: ARG002 (the signature is click's)
        """The row in the section `Arguments`."""
        return self.metavar or self.human_readable_name, self.help + ("  [required]" if self.required else "")


def option(*spellings: str, default: Any = None, **settings: Any) -> Any:
    """A field of a group that an option sets; `settings` are those of `Option`."""
    return _field(default, Option, spellings, {"default": default, **settings})


def flag(*spellings: str, help: str, **settings: Any) -> Any:  # noqa: A002 (click's word)
    """A field of a group that is True if the option is given."""
    return option(*spellings, default=False, is_flag=True, help=help, **settings)


def argument(*, default: Any = None, **settings: Any) -> Any:
    """A field of a group that a positional argument sets; `settings` are those of `Argument`."""
    return _field(default, Argument, (), settings)


def _field(default: Any, kind: type, spellings: tuple[str, ...], settings: Mapping[str, Any]) -> Any:
    return dataclasses.field(default=default, metadata={"click": (kind, spellings, settings)})


def parameters_of(group: type) -> dict[str, click.Parameter]:
    """The click parameters of a group, new ones at each call, by field."""
    made: dict[str, click.Parameter] = {}
    for field in dataclasses.fields(group):
        kind, spellings, settings = field.metadata["click"]
        if kind is Option:
            settings = {"section": getattr(group, "SECTION", OPTIONS), **settings}
        made[field.name] = kind([field.name, *spellings], **settings)
    return made


def option_group(name: str, group: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: the command has the parameters of `group` and receives their values as its argument `name`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = parameters_of(group)

        @functools.wraps(function)
        def command(**values: Any) -> Any:
            values[name] = group(**{field: values.pop(field) for field in parameters})
            return function(**values)

        # click collects parameters in the order in which decorators run, the reverse of the file's, and turns
        # them round (`_param_memo` and `command` of click/decorators.py, click 8).
        vars(command).setdefault("__click_params__", []).extend(reversed(parameters.values()))
        return command

    return decorate


def cli_option(*spellings: str, **settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: an option of this command alone."""
    return click.option(*spellings, cls=Option, **settings)


def cli_argument(name: str, **settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: an argument of this command alone, with a help text."""
    return click.argument(name, cls=Argument, **settings)


json_option = cli_option("--json", is_flag=True, help="Print one JSON value instead of text.")


class _Layout:
    """Help texts as in the docstring: examples stay as they are, options stand in sections."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write all parts. Not click's own, which from 8.5 on has another section for arguments."""
        self.format_usage(ctx, formatter)  # type: ignore[attr-defined]
        self.format_help_text(ctx, formatter)
        self.format_options(ctx, formatter)
        self.format_epilog(ctx, formatter)  # type: ignore[attr-defined]

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        r"""Write the docstring; click fills all paragraphs but those marked by `\b`."""
        del ctx
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(mark_examples(inspect.cleandoc(self.help or "")))  # type: ignore[attr-defined]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections of parameters; a group's commands last."""
        for title, parameters in sections_of(ctx.command, ctx):
            rows = [row for parameter in parameters if (row := parameter.get_help_record(ctx)) is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)


def sections_of(command: click.Command, ctx: click.Context) -> list[tuple[str, list[click.Parameter]]]:
    """The visible parameters of a help text by section: arguments, groups in their order, `Options`, `Connection`."""
    sections: dict[str, list[click.Parameter]] = {ARGUMENTS: []}
    for parameter in command.get_params(ctx):
        if not getattr(parameter, "hidden", False):
            title = ARGUMENTS if isinstance(parameter, click.Argument) else getattr(parameter, "section", OPTIONS)
            sections.setdefault(title, []).append(parameter)
    last = {title: sections.pop(title, []) for title in (OPTIONS, CONNECTION)}
    return [(title, parameters) for title, parameters in (sections | last).items() if parameters]


def mark_examples(text: str) -> str:
    r"""`text` with click's mark `\b`, which keeps its line breaks, before paragraphs of commands or indented lines."""
    return "\n\n".join(_marked(paragraph) for paragraph in text.split("\n\n"))


def _marked(paragraph: str) -> str:
    if not paragraph.startswith(("cotenant ", "$ ", "  ")):
        return paragraph
    indent = "" if paragraph.startswith(" ") else "  "
    return "\n".join(["\b", *(indent + line for line in paragraph.split("\n"))])


class Command(_Layout, click.Command):
    """A verb."""


class Group(_Layout, click.Group):
    """A verb with subcommands."""

    command_class = Command


SETTINGS: Mapping[str, Any] = {"help_option_names": ["-h", "--help"], "show_default": True}


def cli_command(name: str | None = None, **settings: Any) -> Callable[[Callable[..., Any]], Command]:
    """A decorator: this function is the verb, and its docstring the help text."""
    context = {**SETTINGS, **settings.pop("context_settings", {})}
    return click.command(name, cls=settings.pop("cls", Command), context_settings=context, **settings)


def cli_group(name: str | None = None, **settings: Any) -> Callable[[Callable[..., Any]], Group]:
    """A decorator: as `cli_command`, of a verb with subcommands, which inherit the settings."""
    return click.group(name, cls=settings.pop("cls", Group), context_settings=dict(SETTINGS), **settings)
