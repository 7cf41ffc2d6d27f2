#!/usr/bin/env python3
"""Writes the pages of docs/reference that are made from the code, the man page, and the completion scripts.

python scripts/write_reference.py            write all
python scripts/write_reference.py --check    exit 1 if one is out of date, and name it
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

import cotenant
from cotenant.cli import ALIASES, COMMANDS
from cotenant.cli.completion import completion_script
from cotenant.cli.options import SETTINGS, mark_examples, sections_of
from cotenant.cli.output import SCHEMA
from cotenant.cli.root import load, root
from cotenant.cli.schemas.json_outputs import OUTPUTS, ErrorOutput
from cotenant.core.errors import CotenantError
from cotenant.core.estimate import Estimate
from cotenant.core.json_schema import schema_of
from cotenant.daemon.api import openapi
from cotenant.daemon.config import reference as config_keys

ROOT = Path(__file__).parents[1]
COMMAND = "python scripts/write_reference.py"
NOTE = f"<!-- Written by `{COMMAND}`. Edit the code instead. -->\n\n"
SCHEMAS = "#/$defs/"


def pages() -> dict[Path, str]:
    """Every page with its text, by path from the root of the repository."""
    reference = Path("docs/reference")
    share = Path("share")
    return {
        reference / "cli.md": NOTE + cli_page(),
        reference / "configuration.md": NOTE + configuration_page(),
        reference / "http-api.md": NOTE + http_page(openapi()),
        reference / "openapi.json": json.dumps(openapi(), indent=2) + "\n",
        reference / "python-api.md": NOTE + python_page(),
        reference / "json.md": NOTE + json_page(json_schemas()),
        reference / "outputs.schema.json": json.dumps(json_schemas(), indent=2) + "\n",
        share / "man/man1/cotenant.1": man_page(),
        share / "bash-completion/completions/cotenant": completion_script("bash", root),
        share / "zsh/site-functions/_cotenant": completion_script("zsh", root),
        share / "fish/vendor_completions.d/cotenant.fish": completion_script("fish", root),
    }


def verbs() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every verb of ours with its words, groups before their subcommands."""
    for name in COMMANDS:
        command = load(name)
        yield name, command, _context(name, command)
        for sub, subcommand in getattr(command, "commands", {}).items():
            yield f"{name} {sub}", subcommand, _context(f"{name} {sub}", subcommand)


def _context(words: str, command: click.Command) -> click.Context:
    return click.Context(command, info_name=f"cotenant {words}", **SETTINGS)


def cli_page() -> str:
    """All verbs and options."""
    lines = ["# Commands", "", "`cotenant COMMAND --help` prints the same.", ""]
    lines += ["| command | |", "| --- | --- |"]
    lines += [f"| [`{name}`](#cotenant-{name}) | {_cell(line)} |" for name, (_, line) in COMMANDS.items()]
    lines += ["", "Aliases: " + ", ".join(f"`{alias}` is `{name}`" for alias, name in ALIASES.items()) + ".", ""]
    lines += [
        "Exit codes: 0 success, 1 failure, 2 wrong request, 3 no daemon answers, 4 no such job, 5 not permitted,",
        "6 a check of `estimate` failed;",
        "`run`, `wait` and `attach` exit with the exit code of the job.",
        "",
    ]
    for words, command, context in verbs():
        lines += [f"{'##' if ' ' not in words else '###'} cotenant {words}", ""]
        lines += ["```text", context.get_usage().removeprefix("Usage: "), "```", ""]
        lines += [*_help_markdown(command), *_options_markdown(command, context)]
    return "\n".join(lines).rstrip() + "\n"


def _help_markdown(command: click.Command) -> Iterator[str]:
    for paragraph in mark_examples(inspect.cleandoc(command.help or "")).split("\n\n"):
        if paragraph.startswith("\b\n"):
            yield from ("```console", *(line.strip() for line in paragraph.split("\n")[1:]), "```", "")
        else:
            yield from (" ".join(paragraph.split()), "")


def _options_markdown(command: click.Command, context: click.Context) -> Iterator[str]:
    for title, parameters in sections_of(command, context):
        rows = [row for parameter in parameters if (row := parameter.get_help_record(context)) is not None]
        yield from (f"| {title.lower()} | |", "| --- | --- |")
        for spelling, text in rows:
            yield f"| `{_cell(spelling)}` | {_cell(text)} |"
        yield ""


def _cell(text: str) -> str:
    """`text` for a cell of a table; what could be HTML is escaped."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def configuration_page() -> str:
    """All keys."""
    lines = ["# Configuration", ""]
    lines += [
        "A daemon reads `/etc/cotenant/config.toml`, then `~/.config/cotenant/config.toml`, then environment",
        "variables, then options of `cotenant daemon`; later ones win. `cotenant config show --origin` prints the",
        "values in effect, `cotenant config check FILE` checks a file.",
        "",
    ]
    section = None
    for key in config_keys():
        if key.section != section:
            section = key.section
            lines += ["", f"## `[{section}]`", "", "| key | type | default | |", "| --- | --- | --- | --- |"]
        cells = (f"`{key.key}`", _cell(key.type), f"`{key.default}`", _cell(key.help))
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## Environment variables", ""]
    lines += ["`COTENANT_SECTION__KEY` sets a key, e.g. `COTENANT_DAEMON__TICK_S=0.5`.", ""]
    return "\n".join(lines)


def http_page(document: Mapping[str, Any]) -> str:
    """All routes; their bodies and answers are in the OpenAPI document."""
    lines = ["# HTTP API", "", document["info"]["description"], ""]
    lines += ["The [OpenAPI document](openapi.json) has all parameters and schemas; the daemon serves it itself.", ""]
    lines += ["| request | | answer |", "| --- | --- | --- |"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            lines.append(f"| `{method.upper()} {path}` | {_cell(operation['summary'])} | {_answer(operation)} |")
    lines += ["", "## Query parameters", "", "| request | parameter | |", "| --- | --- | --- |"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "query":
                    text = _cell(parameter["description"])
                    lines.append(f"| `{method.upper()} {path}` | `{parameter['name']}` | {text} |")
    lines += ["", "## Schemas", ""]
    return "\n".join(lines) + "\n" + "\n".join(_schema_tables(document["components"]["schemas"])).rstrip() + "\n"


def _answer(operation: Mapping[str, Any]) -> str:
    found = []
    for status, response in operation["responses"].items():
        if status != "default":
            for content, body in response["content"].items():
                name = body.get("schema", {}).get("$ref", "").rpartition("/")[2]
                text = f"`{status}` " + (f"[{name}](#{name.lower()})" if name else f"`{content}`")
                found.append(text)
    return ", ".join(found)


def _schema_tables(schemas: Mapping[str, Any]) -> Iterator[str]:
    for name, schema in sorted(schemas.items()):
        yield from (f"### {name}", "")
        if schema.get("description"):
            yield from (schema["description"], "")
        yield from ("| field | type | |", "| --- | --- | --- |")
        for field, kind in schema.get("properties", {}).items():
            optional = "" if field in schema.get("required", ()) else " (optional)"
            yield f"| `{field}`{optional} | {_type(kind)} | {_cell(kind.get('description', ''))} |"
        yield ""


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(option) for option in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}" if "items" in schema else "list"
    values = schema.get("additionalProperties")
    return f"object of {_type(values)}" if values else schema.get("type", "any value")


def python_page() -> str:
    """The names of the package, with their docstrings, and the errors they raise."""
    lines = ["# Python API", "", inspect.cleandoc(cotenant.__doc__ or "").partition("\n\n")[2].replace("\n", " "), ""]
    for name in cotenant.__all__:
        value = getattr(cotenant, name)
        if callable(value):
            lines += [f"## cotenant.{name}", "", "```python", f"def {name}{_signature(value)}: ...", "```", ""]
            lines += ["```text", inspect.cleandoc(value.__doc__ or ""), "```", ""]
        else:
            lines += [f"## cotenant.{name}", "", f"`{value!r}`", ""]
    lines += [
        "## Estimate",
        "",
        "What `estimate` returns.",
        "",
        "```text",
        inspect.cleandoc(Estimate.__doc__ or ""),
        "```",
    ]
    lines += ["", "| field | type |", "| --- | --- |"]
    lines += [f"| `{field.name}` | `{_cell(str(field.type))}` |" for field in dataclasses.fields(Estimate)]
    lines += ["", "## Errors", "", "All are classes of `cotenant.core.errors`.", ""]
    lines += ["| class | exit code | |", "| --- | --- | --- |"]
    for kind in _error_classes(CotenantError):
        summary = (inspect.getdoc(kind) or "").partition("\n\n")[0]
        lines.append(f"| `{kind.__name__}` | {kind.exit_code} | {_cell(summary)} |")
    return "\n".join(lines) + "\n"


def _signature(value: Any) -> str:
    parameters = [
        f"{parameter.name}: {parameter.annotation}"
        + ("" if parameter.default is parameter.empty else f" = {parameter.default!r}")
        for parameter in inspect.signature(value).parameters.values()
    ]
    returned = inspect.signature(value).return_annotation
    return "(\n    " + ",\n    ".join(parameters) + f",\n) -> {returned}"


def _error_classes(kind: type[CotenantError]) -> Iterator[type[CotenantError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == CotenantError.__module__:
            yield from _error_classes(child)


def json_schemas() -> dict[str, Any]:
    """JSON schemas of what `--json` prints: one definition for each verb, by its words."""
    components: dict[str, Any] = {}
    outputs = {words: schema_of(kind, components) for words, kind in OUTPUTS.items()}
    schema_of(ErrorOutput, components)
    schema_of(Estimate, components)
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"cotenant --json, schema {SCHEMA}",
        "outputs": outputs,
        "$defs": dict(sorted(components.items())),
    }
    text = json.dumps(document).replace("#/components/schemas/", SCHEMAS)
    found: dict[str, Any] = json.loads(text)
    return found


def json_page(document: Mapping[str, Any]) -> str:
    """What each verb prints with `--json`, with all types."""
    lines = ["# JSON", ""]
    lines += [
        f"With `--json` every verb prints one JSON object. Its field `schema` is {SCHEMA}; it changes when a field",
        "is removed or changes its meaning. Sizes are bytes, times are seconds, times of day are RFC 3339 in UTC,",
        "ratios are 0..1, and `null` means unknown. A verb that fails prints [ErrorOutput](#erroroutput).",
        "[JSON schemas](outputs.schema.json) of the same.",
        "",
    ]
    lines += ["| command | output |", "| --- | --- |"]
    lines += [f"| `cotenant {words} --json` | {_type(schema)} |" for words, schema in document["outputs"].items()]
    lines += ["", "## Types", "", *_schema_tables(document["$defs"])]
    return "\n".join(lines).rstrip() + "\n"


def man_page() -> str:
    """cotenant(1), in the macros of man(7)."""
    lines = [f'.TH COTENANT 1 "" "cotenant {cotenant.__version__}" "User Commands"']
    lines += [".SH NAME", "cotenant \\- estimate the GPU memory of training jobs, and share GPU servers"]
    lines += [".SH SYNOPSIS", ".B cotenant", ".I COMMAND", "[\\fIOPTIONS\\fR] [\\fIARGS\\fR]...", ".SH DESCRIPTION"]
    lines += [*_help_man(root), ".SH COMMANDS"]
    for words, command, context in verbs():
        lines += [f".SS cotenant {words}", *_help_man(command)]
        for _, parameters in sections_of(command, context):
            for parameter in parameters:
                record = parameter.get_help_record(context)
                if record is not None and record[0] != "-h, --help":
                    lines += [".TP", f"\\fB{_man(record[0])}\\fR", _man(" ".join(record[1].split()))]
    lines += [
        ".SH EXIT STATUS",
        "0 success, 1 failure, 2 wrong request, 3 no daemon answers, 4 no such job, 5 not permitted.",
    ]
    lines += [".SH FILES"]
    for path, text in (
        ("~/.config/cotenant/config.toml", "Configuration of the daemon."),
        ("~/.local/state/cotenant/", "Journal, and the output of jobs."),
        ("~/.cache/cotenant/", "Traces of scripts."),
    ):
        lines += [".TP", f"\\fI{_man(path)}\\fR", text]
    lines += [".SH ENVIRONMENT"]
    for name, text in (
        ("COTENANT_SOCKET", "Socket of the daemon."),
        ("COTENANT_HOST", "Daemon on the network, HOST[:PORT]."),
        ("COTENANT_TOKEN", "Token for it."),
        ("COTENANT_SECTION__KEY", "Key of the daemon's configuration."),
    ):
        lines += [".TP", f"\\fB{name}\\fR", text]
    return "\n".join(lines) + "\n"


def _help_man(command: click.Command) -> Iterator[str]:
    for paragraph in mark_examples(inspect.cleandoc(command.help or "")).split("\n\n"):
        yield ".PP"
        if paragraph.startswith("\b\n"):
            yield from (".nf", *(_man(line) for line in paragraph.split("\n")[1:]), ".fi")
        else:
            yield _man(" ".join(paragraph.split()))


def _man(text: str) -> str:
    """`text` with the characters that roff would interpret escaped."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def main() -> int:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is out of date")
    only_check = parser.parse_args().check
    stale = 0
    for path, text in pages().items():
        target = ROOT / path
        if target.exists() and target.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if only_check:
            print(f"{path} is out of date", file=sys.stderr)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        print(path)
    if only_check and stale:
        print(f"hint: {COMMAND}", file=sys.stderr)
    return int(only_check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
