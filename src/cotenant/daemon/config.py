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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cotenant.core.errors import UsageError
from cotenant.scheduling.config import Quota

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENV_PREFIX = "COTENANT_"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSection:
    """`[daemon]`.

    Attributes:
        state_dir: journal, logs and attempts; None for the XDG state folder.
        tick_s: time between two readings of the GPUs.
        durable: `full` survives a power cut; `normal` may lose the newest events in one, and submits faster.
    """

    state_dir: str | None = None
    tick_s: float = 1.0
    durable: Literal["full", "normal"] = "full"
    log_level: Literal["debug", "info", "warning", "error"] = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySection:
    """`[policy]`: its name, and options that depend on it under `[policy.options]`."""

    name: str = "most-memory"
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusSection:
    """`[gpus]`.

    Attributes:
        simulate: a simulated server, e.g. `4xA100-40GB`, or None.
        time_scale: virtual seconds in a second on the simulated server.
        live: on the simulated server, jobs that use torch find its cards: fake CUDA tensors that fill them.
    """

    backend: Literal["auto", "nvml", "simulated"] = "auto"
    simulate: str | None = None
    time_scale: float = 1.0
    live: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatesSection:
    """`[estimates]`.

    Attributes:
        estimator: asked for jobs that declare no memory and name no other.
        gpu: device profile to estimate for; None for the GPU that the server has.
        concurrency: estimates made at the same time.
    """

    enabled: bool = True
    estimator: str = "traced"
    gpu: str | None = None
    timeout_s: float = 120.0
    concurrency: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingSection:
    """`[scheduling]`.

    Attributes:
        stale_after_s: a reading of a GPU that is older admits nothing.
        window_s: readings kept for policies.
        stop_grace_s: from the polite signal to the end of a job's process tree.
        ageing_per_hour: points that the priority of a waiting job grows by in an hour; 0 is no ageing.
    """

    stale_after_s: float = 5.0
    window_s: float = 30.0
    stop_grace_s: float = 10.0
    ageing_per_hour: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsSection:
    """`[mps]`, for policies that share GPUs by MPS.

    Attributes:
        thread_percent: share of the SMs that the kernels of one job may use, in percent as NVIDIA counts it; None: all.
    """

    thread_percent: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSection:
    """`[metrics]`.

    Attributes:
        listen: `HOST:PORT` to serve Prometheus on, e.g. `127.0.0.1:9877`; None serves it on the daemon's socket only.
    """

    listen: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSection:
    """`[access]`.

    Attributes:
        users: `own`: the daemon's user alone, and root. `all`: everybody on this machine, each with jobs of their own
            that run as them; the daemon must be root's then.
        admins: names or uids, separated by commas, of those who may see and change all jobs besides root.
    """

    users: Literal["own", "all"] = "own"
    admins: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotasSection:
    """`[quotas]`: what each user may have at once; None is no limit.

    Attributes:
        jobs: jobs that run.
        gpus: GPUs of these, shared ones counted once for each.
        queued: jobs that are not over.
        users: other numbers for some users, e.g. `[quotas.users.ann]` with `jobs = 10`.
    """

    jobs: int | None = None
    gpus: int | None = None
    queued: int | None = None
    users: Mapping[str, object] = field(default_factory=dict)

    def of_all(self) -> Quota:
        """What holds for users that are not named."""
        return Quota(jobs=self.jobs, gpus=self.gpus, queued=self.queued)

    def of_users(self) -> dict[str, Quota]:
        """What holds for those that are.

        Raises:
            UsageError: not a table of whole numbers from 0.
        """
        return {name: self._quota(name, told) for name, told in self.users.items()}

    def _quota(self, name: str, told: object) -> Quota:
        known = {each.name for each in dataclasses.fields(Quota)}
        if not isinstance(told, Mapping) or not told.keys() <= known:
            raise UsageError(f"`quotas.users.{name}` must be a table of {', '.join(sorted(known))}")
        for key, value in told.items():
            if type(value) is not int or value < 0:
                raise UsageError(f"`quotas.users.{name}.{key}` is {value!r}, wanted a whole number from 0")
        return dataclasses.replace(self.of_all(), **told)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationsSection:
    """`[notifications]`.

    Attributes:
        enabled: do what jobs ask for with `--notify`: run a command as their user, or send a message.
        timeout_s: longest that one may take.
    """

    enabled: bool = False
    timeout_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All of it."""

    daemon: DaemonSection = field(default_factory=DaemonSection)
    policy: PolicySection = field(default_factory=PolicySection)
    gpus: GpusSection = field(default_factory=GpusSection)
    estimates: EstimatesSection = field(default_factory=EstimatesSection)
    scheduling: SchedulingSection = field(default_factory=SchedulingSection)
    metrics: MetricsSection = field(default_factory=MetricsSection)
    mps: MpsSection = field(default_factory=MpsSection)
    access: AccessSection = field(default_factory=AccessSection)
    quotas: QuotasSection = field(default_factory=QuotasSection)
    notifications: NotificationsSection = field(default_factory=NotificationsSection)


_POSITIVE = {"thread_percent", "tick_s", "time_scale", "timeout_s", "concurrency", "stale_after_s", "window_s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
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


def settings(files: Iterable[Path], env: Mapping[str, str]) -> list[Setting]:
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
        Setting(section=part.name, key=key, value=value, origin=origins.get((part.name, key), "default"))
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
