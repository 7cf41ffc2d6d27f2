"""The daemon's configuration: defaults < /etc < the user's file < environment < flags.

Files are TOML. The environment spells a key `COTENANT_SECTION__KEY`, e.g. `COTENANT_DAEMON__TICK_S=0.5`;
options of a policy are `COTENANT_POLICY__OPTIONS__SMACT_LIMIT=0.7`.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotenant.core.errors import UsageError
from cotenant.daemon.config.schema import Config
from cotenant.daemon.config.value_types import fits, hints, is_above_zero, options, type_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Config", "ConfigValue", "effective_values", "load"]

ENV_PREFIX = "COTENANT_"

RENAMED_VALUES: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("scheduling", "overrun"): {"tell": "report"},
    ("idle", "action"): {"tell": "notify"},
}
"""Values of earlier versions: a daemon must start after an update with the files it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """The value of a key, and its origin: a file, an environment variable, the command line, or the default."""

    section: str
    key: str
    value: object
    origin: str


def load(files: Iterable[Path], env: Mapping[str, str], flags: Mapping[str, Mapping[str, Any]]) -> Config:
    """Merge layers into a configuration: files in order, then the environment, then command-line flags.

    `flags` maps sections to keys to values; None means that the flag was not given. Missing files are skipped.

    Raises:
        UsageError: an unknown key, or a value of the wrong type; names the file or the variable.
    """
    return _built(layer for _, layer in _layers(files, env, flags))


def effective_values(files: Iterable[Path], env: Mapping[str, str]) -> list[ConfigValue]:
    """Every key in the order of `Config`, with its value; options of the policy one by one, as `options.NAME`.

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
    kinds = hints(Config)
    return Config(**{name: kind(**merged.get(name, {})) for name, kind in kinds.items()})


def _layers(
    files: Iterable[Path], env: Mapping[str, str], flags: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    """Yield each layer's origin and its values; later layers override earlier ones."""
    for path in files:
        yield str(path), _checked(_read(path), str(path))
    yield from _from_env(env)
    given = {name: {key: value for key, value in keys.items() if value is not None} for name, keys in flags.items()}
    yield "the command line", _checked(given, "the command line")


def _values(section: Any) -> dict[str, Any]:
    return {item.name: getattr(section, item.name) for item in dataclasses.fields(section)}


def _flat(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return `keys`, with the keys of nested tables as `table.key`."""
    flat: dict[str, Any] = {}
    for key, value in keys.items():
        if isinstance(value, Mapping):
            flat.update({f"{key}.{inner_key}": inner for inner_key, inner in value.items()})
        else:
            flat[key] = value
    return flat


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read `{path}`: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"{path}: not TOML: {str(error)[:1].lower()}{str(error)[1:]}",
            hint="see `cotenant config show` for sections and keys",
        ) from error


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
    for option in options(kind):
        if option is bool and text.lower() in ("true", "false", "1", "0"):
            return text.lower() in ("true", "1")
        if option in (int, float):
            try:
                return option(text)
            except ValueError as error:
                raise UsageError(f"{where}`{text}` is not a number") from error
    return text


def _checked(layer: Mapping[str, Any], where: str) -> dict[str, dict[str, Any]]:
    """Return `layer`, with the names of today for renamed values, if its keys are known and their types are right."""
    checked: dict[str, dict[str, Any]] = {}
    for section, keys in layer.items():
        if not isinstance(keys, Mapping):
            _kind(section, None, where)
            raise UsageError(f"{where}: `{section}` is {keys!r}, wanted a table")
        checked[section] = {}
        for key, given in keys.items():
            kind = _kind(section, key, where)
            renamed = RENAMED_VALUES.get((section, key), {})
            value: Any = renamed.get(given, given) if isinstance(given, str) else given
            if not any(fits(value, option) for option in options(kind)):
                raise UsageError(f"{where}: `{section}.{key}` is {value!r}, wanted {type_name(kind)}")
            if is_above_zero(hints(Config)[section], key) and not value > 0:
                raise UsageError(f"{where}: `{section}.{key}` is {value!r}, wanted a number above zero")
            checked[section][key] = value
    return checked


def _kind(section: str, key: str | None, where: str) -> Any:
    sections = hints(Config)
    if section not in sections:
        raise UsageError(f"{where}: no section `{section}` (known: {', '.join(sections)})")
    keys = hints(sections[section])
    if key is not None and key not in keys:
        raise UsageError(f"{where}: no key `{key}` in `{section}` (known: {', '.join(keys)})")
    return keys.get(key) if key is not None else None


def _merge(into: dict[str, dict[str, Any]], layer: Mapping[str, Mapping[str, Any]]) -> None:
    for section, keys in layer.items():
        for key, value in keys.items():
            old = into.setdefault(section, {}).get(key)
            into[section][key] = {**old, **value} if isinstance(old, dict) and isinstance(value, Mapping) else value
