"""Job lists: TOML files with `[defaults]`, `[[job]]` and, for collocation, `[[pair]]` and `[[group]]`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, get_args

from cotenant.core.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SETTINGS_SCRIPT = Path(__file__).with_name("run_with_torch_flags.py")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PROFILE = r"[1-7]g\.[0-9]+gb(?:\+[a-z0-9.]+)?"
# Compute instances of one GPU instance: all of the same, hence the back reference.
_COMPUTE = rf"[1-7]c\.(?P<of>{_PROFILE})(?:,[1-7]c\.(?P=of))*"
_SHARING = re.compile(rf"time-sliced|mps(?::(?:[1-9][0-9]?|100))?|mig:(?:{_PROFILE}(?:,{_PROFILE})*|{_COMPUTE})")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureJob:
    """One script to run, and how.

    Attributes:
        script: absolute path.
        env: added to the environment. settings: of `torch.backends`, by dotted name, e.g. `cudnn.benchmark`.
        steps: optimizer steps to run; the first `warmup_steps` do not count for step times.
        seconds: duration of timed training in a group that does not train until its steps are done.
        epoch_steps: optimizer steps of an epoch, for times per epoch; None if not known.
        simulated: measured workload that stands for it on a simulated GPU; empty for the one that `args` name.
        history: record every allocation; `snapshot`: save PyTorch's own snapshot as well.
    """

    name: str
    script: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    repeats: int = 1
    steps: int = 5
    warmup_steps: int = 2
    seconds: float | None = None
    epoch_steps: int | None = None
    limit_s: float = 120.0
    history: bool = True
    snapshot: bool = False
    gpu: str = "H200-141GB"
    simulated: str = ""

    @property
    def command(self) -> tuple[str, ...]:
        """Script and arguments; with settings, run by `run_with_torch_flags.py`."""
        if not self.settings:
            return (self.script, *self.args)
        made = [f"{key}={json.dumps(value)}" for key, value in self.settings.items()]
        return (str(SETTINGS_SCRIPT), *made, self.script, *self.args)


ALONE, TIME_SLICED = "alone", "time-sliced"

Until = Literal["seconds", "steps", "refill"]
UNTIL: tuple[Until, ...] = get_args(Until)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGroup:
    """Jobs, by name, that run on one GPU at the same time.

    Attributes:
        sharing: `alone`, `time-sliced`, `mps`, `mps:50` (percent of the SMs for each job), `mig:3g.20gb,3g.20gb`,
            or compute instances that share the memory of one GPU instance, `mig:3c.7g.40gb,3c.7g.40gb`.
        until: how long they train after the start barrier: each for its `seconds`; each for its `steps`, and the place
            of one that is done stays empty; or the same, and one that is done is started again (`refill`) until all
            have ended once.
    """

    jobs: tuple[str, ...]
    sharing: str = TIME_SLICED
    until: Until = "seconds"

    @property
    def name(self) -> str:
        """The names of the jobs, joined by `+`."""
        return "+".join(self.jobs)

    @property
    def folder(self) -> str:
        """A name for a folder: the jobs in order; of equal ones that follow each other one, with their number."""
        runs = [(name, len(list(same))) for name, same in groupby(self.jobs)]
        return "-with-".join(name if count == 1 else f"{name}-x{count}" for name, count in runs)

    def run_folder(self, repeat: int) -> str:
        """A name for the folder of one run, inside of `folder`."""
        until = "" if self.until == "seconds" else f"-{self.until}"
        return f"{self.sharing.replace(':', '-').replace(',', '-')}{until}-{repeat}"

    @property
    def way(self) -> str:
        """The way to share without its details."""
        return self.sharing.partition(":")[0]

    @property
    def detail(self) -> str:
        """Percent of the SMs, or MIG profiles; empty without."""
        return self.sharing.partition(":")[2]


def group_text(jobs: Sequence[str]) -> str:
    """The jobs of a group: `2 x a + b`."""
    runs = [(name, len(list(same))) for name, same in groupby(jobs)]
    return " + ".join(name if count == 1 else f"{count} x {name}" for name, count in runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobList:
    """Jobs in order, and groups of their names."""

    path: str
    jobs: tuple[MeasureJob, ...]
    groups: tuple[JobGroup, ...] = ()

    def only(self, pattern: str | None) -> JobList:
        """Jobs with a name or tag that matches the glob `pattern`, and the groups among them.

        Raises:
            UsageError: there are none.
        """
        if pattern is None:
            return self
        selected = tuple(job for job in self.jobs if any(fnmatch(text, pattern) for text in (job.name, *job.tags)))
        if not selected:
            raise UsageError(
                f"no job of `{self.path}` has a name or a tag like `{pattern}`",
                hint=f"its first jobs are {', '.join(job.name for job in self.jobs[:5])}",
            )
        names = {job.name for job in selected}
        return JobList(path=self.path, jobs=selected, groups=tuple(g for g in self.groups if names.issuperset(g.jobs)))


def read_jobs(path: Path) -> JobList:
    """Read a job list; script paths are relative to the file.

    Raises:
        UsageError: the file is not a job list; the message names file and key.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {(error.strerror or str(error)).lower()}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        hint = "wanted: a list of `[[job]]` tables, each with `name` and `script`, not a script itself"
        raise UsageError(f"{path}: not TOML: {error}", hint=hint) from error
    _refuse_unknown(path, "", data, ("defaults", "job", "pair", "group"))
    defaults = _table(path, "defaults", data.get("defaults", {}))
    _refuse_unknown(path, "defaults.", defaults, _DEFAULTABLE)
    entries = data.get("job")
    if not isinstance(entries, list) or not entries:
        raise UsageError(f"{path}: no `[[job]]`", hint="each job is a table with `name`, `script` and `args`")
    jobs = []
    for number, entry in enumerate(entries, start=1):
        where = f"job[{number}]"
        jobs += _jobs_of_sizes(path, where, {**defaults, **_table(path, where, entry)})
    names = [job.name for job in jobs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"{path}: two jobs are named `{twice[0]}`", hint="results are stored by name")
    groups = (*_pairs(path, data.get("pair", []), names), *_groups(path, data.get("group", []), names))
    return JobList(path=str(path), jobs=tuple(jobs), groups=groups)


_KINDS: Mapping[str, tuple[type, ...]] = {
    "name": (str,),
    "script": (str,),
    "args": (list,),
    "env": (dict,),
    "settings": (dict,),
    "tags": (list,),
    "repeats": (int,),
    "steps": (int,),
    "warmup_steps": (int,),
    "seconds": (int, float),
    "epoch_steps": (int,),
    "limit_s": (int, float),
    "history": (bool,),
    "snapshot": (bool,),
    "gpu": (str,),
    "simulated": (str,),
}
_DEFAULTABLE = tuple(key for key in _KINDS if key not in {"name", "script", "args"})
_ABOVE_ZERO = ("repeats", "steps", "seconds", "epoch_steps", "limit_s")
_TEXTS = ("args", "tags")


def _job(path: Path, where: str, entry: Mapping[str, Any]) -> MeasureJob:
    _refuse_unknown(path, f"{where}.", entry, tuple(_KINDS))
    for key in ("name", "script"):
        if key not in entry:
            raise UsageError(f"{path}: `{where}.{key}` is missing")
    for key, value in entry.items():
        _check(path, f"{where}.{key}", key, value)
    if not _NAME.fullmatch(entry["name"]):
        raise UsageError(
            f"{path}: `{where}.name` is `{entry['name']}`", hint="a name is a folder: letters, digits, `.`, `_`, `-`"
        )
    script = (path.parent / entry["script"]).resolve()
    if not script.is_file():
        raise UsageError(f"{path}: `{where}.script`: no file `{script}`", hint="paths are relative to the job list")
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    job = MeasureJob(**{**values, "script": str(script)})
    if job.seconds is None and job.warmup_steps >= job.steps:
        raise UsageError(f"{path}: `{where}.warmup_steps` is {job.warmup_steps} of {job.steps} steps: none is left")
    return job


def _check(path: Path, where: str, key: str, value: object) -> None:
    kinds = _KINDS[key]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise UsageError(f"{path}: `{where}` must be {wanted}, got {value!r}")
    if key in _ABOVE_ZERO and value <= 0:  # type: ignore[operator]  # its kind was checked above
        raise UsageError(f"{path}: `{where}` must be > 0, got {value}")
    if key == "warmup_steps" and value < 0:  # type: ignore[operator]
        raise UsageError(f"{path}: `{where}` must be >= 0, got {value}")
    texts: Sequence[object] = list(value) if key in _TEXTS else list(value.values()) if key == "env" else ()  # type: ignore[call-overload, attr-defined]
    for text in texts:
        if not isinstance(text, str):
            raise UsageError(f"{path}: `{where}` must hold strings, got {text!r}", hint=f'write "{text}"')


def _jobs_of_sizes(path: Path, where: str, entry: Mapping[str, Any]) -> list[MeasureJob]:
    """The job, or one for each of its `batch_sizes`, named `NAME-bSIZE`, with `{batch_size}` replaced in `args`."""
    if "batch_sizes" not in entry:
        return [_job(path, where, entry)]
    sizes = entry["batch_sizes"]
    if not isinstance(sizes, list) or not all(
        isinstance(size, int) and size is not True and size > 0 for size in sizes
    ):
        raise UsageError(f"{path}: `{where}.batch_sizes` is {sizes!r}, wanted a list of integers above 0")
    args = entry.get("args", [])
    if not isinstance(args, list) or "{batch_size}" not in args:
        raise UsageError(
            f"{path}: `{where}.args` has no `{{batch_size}}`", hint="put it where the script reads the size"
        )
    rest = {key: value for key, value in entry.items() if key != "batch_sizes"}
    return [
        _job(
            path,
            where,
            {
                **rest,
                "name": f"{entry.get('name')}-b{size}",
                "args": [str(size) if arg == "{batch_size}" else arg for arg in args],
            },
        )
        for size in sizes
    ]


def _groups(path: Path, entries: object, names: Sequence[str]) -> tuple[JobGroup, ...]:
    groups = []
    for number, entry in enumerate(entries if isinstance(entries, list) else [entries], start=1):
        where = f"group[{number}]"
        table = _table(path, where, entry)
        _refuse_unknown(path, f"{where}.", table, ("jobs", "sharing", "until"))
        jobs, ways = table.get("jobs"), table.get("sharing", [TIME_SLICED])
        until = table.get("until", UNTIL[0])
        if until not in UNTIL:
            raise UsageError(f"{path}: `{where}.until` is {until!r}", hint=f"write one of {', '.join(UNTIL)}")
        if not isinstance(jobs, list) or len(jobs) < 2:
            raise UsageError(f"{path}: `{where}.jobs` is {jobs!r}, wanted the names of two jobs or more")
        for name in jobs:
            if name not in names:
                raise UsageError(f"{path}: `{where}.jobs`: no job is named `{name}`")
        for way in ways if isinstance(ways, list) else [ways]:
            if not isinstance(way, str) or not _SHARING.fullmatch(way):
                raise UsageError(
                    f"{path}: `{where}.sharing`: {way!r} is no way to share",
                    hint="write `time-sliced`, `mps`, `mps:50`, `mig:3g.20gb,3g.20gb` or `mig:3c.7g.40gb,3c.7g.40gb`",
                )
            groups.append(JobGroup(jobs=tuple(jobs), sharing=way, until=until))
    return tuple(groups)


def _pairs(path: Path, entries: object, names: Sequence[str]) -> tuple[JobGroup, ...]:
    pairs = []
    for number, entry in enumerate(entries if isinstance(entries, list) else [entries], start=1):
        where = f"pair[{number}]"
        table = _table(path, where, entry)
        _refuse_unknown(path, f"{where}.", table, ("jobs",))
        jobs = table.get("jobs")
        if not isinstance(jobs, list) or len(jobs) != 2:
            raise UsageError(f"{path}: `{where}.jobs` is {jobs!r}, wanted the names of two jobs")
        for name in jobs:
            if name not in names:
                raise UsageError(f"{path}: `{where}.jobs`: no job is named `{name}`")
        pairs.append(JobGroup(jobs=(jobs[0], jobs[1])))
    return tuple(pairs)


def _table(path: Path, where: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{path}: `{where}` is {value!r}, wanted a table")
    return value


def _refuse_unknown(path: Path, where: str, table: Mapping[str, object], known: Sequence[str]) -> None:
    for key in table:
        if key not in known:
            raise UsageError(f"{path}: `{where}{key}` is not known", hint=f"known here: {', '.join(known)}")
