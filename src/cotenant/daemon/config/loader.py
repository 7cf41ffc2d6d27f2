"""The daemon's configuration: defaults < /etc < the user's file < environment < flags.

Files are TOML. The environment spells a key `COTENANT_SECTION__KEY`, e.g. `COTENANT_DAEMON__TICK_S=0.5`;
options of a policy are `COTENANT_POLICY__OPTIONS__SMACT_LIMIT=0.7`.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cotenant.core.errors import UsageError
from cotenant.daemon.config.schema import Config

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Config", "ConfigValue", "effective_values", "load"]

ENV_PREFIX = "COTENANT_"

_POSITIVE = {
    "concurrency",
    "connections",
    "idle_timeout_s",
    "stale_after_s",
    "thread_percent",
    "tick_s",
    "time_scale",
    "timeout_s",
    "window_s",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """One key as it is in effect, and where its value comes from: a file, a variable, the command line, a default."""

    section: str
    key: str
    value: object
    origin: str


def load(files: Iterable[Path], env: Mapping[str, str], flags: Mapping[str, Mapping[str, Any]]) -> Config:
    """The configuration of these layers, later ones over earlier ones.

    `flags` holds section, key and value; a value of None was not given. Files that do not exist are skipped.

    Raises:
        UsageError: a key that is unknown or a value that does not fit; names the file or the variable.
    """
    return _built(layer for _, layer in _layers(files, env, flags))


def effective_values(files: Iterable[Path], env: Mapping[str, str]) -> list[ConfigValue]:
    """Every key, in the order of `Config`; options of the policy one by one, as `options.NAME`.

    Raises:
        UsageError: as `load`.
    """
    layers = list(_layers(files, env, {}))
    origins = {
        (section, key): where for where, layer in layers for section, keys in layer.items() for key in _flat(keys)
    }
    config = _built(layer for _, layer in layers)
    return [
        ConfigValue(section=part.name, key=key, value=value, origin=origins.get((part.name, key), "default"))
        for part in dataclasses.fields(Config)
        for key, value in _flat(_values(getattr(config, part.name))).items()
    ]


def _built(layers: Iterable[Mapping[str, Mapping[str, Any]]]) -> Config:
    merged: dict[str, dict[str, Any]] = {}
    for layer in layers:
        _merge(merged, layer)
    kinds = _hints(Config)
    return Config(**{name: kind(**merged.get(name, {})) for name, kind in kinds.items()})


def _layers(
    files: Iterable[Path], env: Mapping[str, str], flags: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    """Where each layer comes from, and what it sets; later ones stand over earlier ones."""
    for path in files:
        yield str(path), _checked(_read(path), str(path))
    yield from _from_env(env)
    given = {name: {key: value for key, value in keys.items() if value is not None} for name, keys in flags.items()}
    yield "the command line", _checked(given, "the command line")


def _values(section: Any) -> dict[str, Any]:
    return {each.name: getattr(section, each.name) for each in dataclasses.fields(section)}


def _flat(keys: Mapping[str, Any]) -> dict[str, Any]:
    """`keys`, with those of a table in it as `table.key`."""
    flat: dict[str, Any] = {}
    for key, value in keys.items():
        flat.update(
            {f"{key}.{inner}": each for inner, each in value.items()} if isinstance(value, Mapping) else {key: value}
        )
    return flat


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read `{path}`: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: {str(error)[:1].lower()}{str(error)[1:]}") from error


def _from_env(env: Mapping[str, str]) -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    for variable, text in sorted(env.items()):
        section, separator, key = variable.removeprefix(ENV_PREFIX).lower().partition("__")
        if not variable.startswith(ENV_PREFIX) or not separator:
            continue
        where = f"environment variable {variable}"
        kind = _kind(section, key.partition("__")[0], where)
        if key.startswith("options__"):
            value: Any = {key.removeprefix("options__"): _literal(text)}
            key = "options"
        else:
            value = _parse(text, kind, f"{where}: ")
        yield where, _checked({section: {key: value}}, where)


def _literal(text: str) -> object:
    """A TOML value, or the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _parse(text: str, kind: Any, where: str) -> Any:
    for option in _options(kind):
        if option is bool and text.lower() in ("true", "false", "1", "0"):
            return text.lower() in ("true", "1")
        if option in (int, float):
            try:
                return option(text)
            except ValueError as error:
                raise UsageError(f"{where}`{text}` is not a number") from error
    return text


def _checked(layer: Mapping[str, Any], where: str) -> dict[str, dict[str, Any]]:
    """`layer` if all its keys are known and its values fit."""
    for section, keys in layer.items():
        if not isinstance(keys, Mapping):
            _kind(section, None, where)
            raise UsageError(f"{where}: `{section}` is {keys!r}, wanted a table")
        for key, value in keys.items():
            kind = _kind(section, key, where)
            if not any(_fits(value, option) for option in _options(kind)):
                wanted = " or ".join(_name(option) for option in _options(kind) if option is not type(None))
                raise UsageError(f"{where}: `{section}.{key}` is {value!r}, wanted {wanted}")
            if key in _POSITIVE and not value > 0:
                raise UsageError(f"{where}: `{section}.{key}` is {value!r}, wanted a number above zero")
    return {section: dict(keys) for section, keys in layer.items()}


def _kind(section: str, key: str | None, where: str) -> Any:
    sections = _hints(Config)
    if section not in sections:
        raise UsageError(f"{where}: no section `{section}` (known: {', '.join(sections)})")
    keys = _hints(sections[section])
    if key is not None and key not in keys:
        raise UsageError(f"{where}: no key `{key}` in `{section}` (known: {', '.join(keys)})")
    return keys.get(key) if key is not None else None


def _options(kind: Any) -> tuple[Any, ...]:
    union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return typing.get_args(kind) if union else (kind,)


def _fits(value: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is Literal:
        return value in typing.get_args(kind)
    if typing.get_origin(kind) is not None:
        return isinstance(value, Mapping)
    if kind is float:
        # Not NaN, not infinite: those would pass every comparison or none.
        return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e12
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)


def _name(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(f"`{each}`" for each in typing.get_args(kind))
    words = {float: "a number", int: "a whole number", bool: "true or false", str: "a text"}
    return words.get(kind, "a table")


def _merge(into: dict[str, dict[str, Any]], layer: Mapping[str, Mapping[str, Any]]) -> None:
    for section, keys in layer.items():
        for key, value in keys.items():
            old = into.setdefault(section, {}).get(key)
            into[section][key] = {**old, **value} if isinstance(old, dict) and isinstance(value, Mapping) else value


def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)
