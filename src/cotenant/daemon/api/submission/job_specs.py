"""Parses and checks the jobs that clients submit. The user comes from the peer, not from the client."""

from __future__ import annotations

import functools
import math
import os
import pwd
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cotenant.core.codec import CodecError, decode, encode
from cotenant.core.errors import UnknownName, UsageError
from cotenant.core.job import ArrayTask, JobSpec
from cotenant.core.text import TextKind, check_bytes, check_text
from cotenant.daemon.api.submission.job_fields import UPDATABLE_FIELDS
from cotenant.daemon.auth.resource_limits import limits_of
from cotenant.daemon.auth.unix_socket import Peer
from cotenant.engines.slurm_environment import array_environment
from cotenant.estimators import ESTIMATORS

MAX_GPUS = 1024
MAX_ATTEMPTS = 100
MAX_TASKS = 10_000
MAX_BATCH = 2**40
MAX_PRIORITY = 10**6
MAX_PATTERN_CHARS = 500
MAX_NAME_CHARS = 255
MAX_NOTIFY_CHARS = 4096
MAX_ARG_CHARS = 128 * 1024
MAX_ARGS_CHARS = 6 * 1024 * 1024
"""The kernel passes no more to a program. Source: execve(2), "Limits on size of arguments"."""
MAX_CHECKPOINT_GRACE_S = 3600.0
MAX_DURATION_S = 10 * 366 * 86400.0

_TEXT_KINDS: Mapping[str, TextKind] = {
    "workdir": "path",
    "stdin_path": "path",
    "stdout_path": "path",
    "stderr_path": "path",
    "model_summary": "path",
    "source": "label",
    "notify": "lines",
    "progress": "lines",
}

_MARK = re.compile("%([0-9]{0,2})([jAaxubNnt%])")


def parse_specs(jobs: Sequence[object], peer: Peer) -> list[JobSpec]:
    """Parse `jobs`; an array becomes one spec per task.

    The id of an array is that of its first job, not known yet: until `with_array_ids`, its tasks share a negative one.

    Raises:
        UsageError: one of them is not a valid job.
    """
    specs: list[JobSpec] = []
    for number, job in enumerate(jobs, start=1):
        array = job.get("array") if isinstance(job, dict) else None
        if not isinstance(job, dict) or array is None:
            specs.append(parse_spec(job, peer))
            continue
        spec = parse_spec({**job, "array": None}, peer)
        indices, limit = _array(array)
        if spec.slurm_env != "none":
            spec = replace(spec, env={**spec.env, **array_environment(indices)})
        specs += [replace(spec, array=ArrayTask(array_id=-number, index=i, limit=limit)) for i in indices]
    if len(specs) > MAX_TASKS:
        raise UsageError(f"{len(specs)} jobs at once, wanted at most {MAX_TASKS}")
    limits = limits_of(peer)
    return specs if limits is None else [replace(spec, limits=limits) for spec in specs]


def _array(array: object) -> tuple[list[int], int | None]:
    """Indices and limit in `{"tasks": [1, 2], "limit": 1}`."""
    if not isinstance(array, dict) or array.keys() - {"tasks", "limit"}:
        raise UsageError("`array` must be an object with `tasks` and `limit`")
    tasks, limit = array.get("tasks"), array.get("limit")
    if not isinstance(tasks, list) or not 1 <= len(tasks) <= MAX_TASKS or not all(type(i) is int for i in tasks):
        raise UsageError(f"`array.tasks` must be 1 to {MAX_TASKS} whole numbers")
    if len(set(tasks)) != len(tasks) or not all(0 <= i < 2**31 for i in tasks):
        raise UsageError("`array.tasks` must be different numbers from 0")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise UsageError(f"`array.limit` is {limit!r}, wanted a whole number above zero")
    return tasks, limit


def parse_spec(job: object, peer: Peer) -> JobSpec:
    """Parse one job, owned by the peer.

    A daemon that is not root's runs every job as its own user, also those that root submits.

    Raises:
        UsageError: it is not a valid job.
    """
    if not isinstance(job, dict):
        raise UsageError("a job must be a JSON object")
    uid = peer.uid if os.getuid() == 0 else os.getuid()
    try:
        spec: JobSpec = decode(JobSpec, {**job, "user": user_name(uid), "uid": uid, "limits": None})
    except CodecError as error:
        raise UsageError(f"invalid job: {error.message}") from error
    _check(spec)
    return spec


def _check(spec: JobSpec) -> None:
    if not spec.command or not spec.command[0]:
        raise UsageError("the job has no command")
    _check_texts(spec)
    texts = (*spec.command, spec.workdir, *spec.env, *spec.env.values(), spec.stdout_path or "", spec.stderr_path or "")
    sizes = list(map(len, texts))
    if max(sizes) >= MAX_ARG_CHARS or sum(sizes) > MAX_ARGS_CHARS:
        raise UsageError(
            f"the command and the environment have {sum(sizes)} characters, the longest word {max(sizes)}: the kernel "
            f"takes {MAX_ARGS_CHARS} and {MAX_ARG_CHARS - 1}",
            hint="leave out variables with --export",
        )
    if "" in spec.env or "=" in "".join(spec.env):
        raise UsageError("the job has an environment variable without a name, or with `=` in it")
    for path in (spec.workdir, spec.stdin_path, spec.stdout_path, spec.stderr_path, spec.model_summary):
        if path is not None and not path.startswith("/"):
            raise UsageError(f"`{path}` is not an absolute path")
    _check_count("requests {} GPUs", spec.gpus, 1, MAX_GPUS)
    _check_count("may be tried {} times", spec.max_attempts, 1, MAX_ATTEMPTS)
    _check_count("may be retried {} times", spec.retries, 0, MAX_ATTEMPTS)
    _check_words(spec)
    if not -MAX_PRIORITY <= spec.priority <= MAX_PRIORITY:
        raise UsageError(f"priority {spec.priority} is beyond {MAX_PRIORITY}")
    if spec.begin_at_s is not None and not (math.isfinite(spec.begin_at_s) and 0 <= spec.begin_at_s < 2**40):
        raise UsageError(f"`begin_at_s` is {spec.begin_at_s}, wanted seconds since 1970")
    _check_durations(spec)
    if spec.batch_size is not None and not 1 <= spec.batch_size <= MAX_BATCH:
        raise UsageError(f"`batch_size` is {spec.batch_size}, wanted 1 to {MAX_BATCH}")
    for name in ("declared_bytes", "time_limit_s", "max_slowdown", "time_slice_s", "checkpoint_grace_s"):
        value = getattr(spec, name)
        # Written so that NaN fails too.
        if value is not None and not 0 < value < 2**60:
            raise UsageError(f"`{name}` is {value}, wanted a number above zero")


def _check_count(what: str, count: int, least: int, most: int) -> None:
    if not least <= count <= most:
        raise UsageError(f"the job {what.format(count)}, wanted {least} to {most}")


def _check_durations(spec: JobSpec) -> None:
    for what, duration_s in (("time limit", spec.time_limit_s), ("time slice", spec.time_slice_s)):
        if duration_s is not None and duration_s > MAX_DURATION_S:
            raise UsageError(f"a {what} of {duration_s:g} s is beyond ten years", hint="leave it out for none")
    if spec.checkpoint_grace_s > MAX_CHECKPOINT_GRACE_S:
        raise UsageError(
            f"{spec.checkpoint_grace_s:g} s to save a checkpoint is beyond an hour", hint="others wait for its GPUs"
        )


def _check_texts(spec: JobSpec) -> None:
    """Check the characters of every text; see `core.text`."""
    check_bytes("the command of the job", spec.command)
    check_bytes("the environment of the job", (*spec.env, *spec.env.values()))
    check_text("the name of the job", spec.name, "label")
    for name, kind in _TEXT_KINDS.items():
        text = getattr(spec, name)
        if text is not None:
            check_text(f"`{name}`", text, kind)


def _check_words(spec: JobSpec) -> None:
    if not spec.name.strip():
        raise UsageError("the name of the job is empty", hint="leave out the name, or write one")
    if len(spec.name) > MAX_NAME_CHARS:
        raise UsageError(f"the name of the job has {len(spec.name)} characters, wanted at most {MAX_NAME_CHARS}")
    if spec.notify is not None and len(spec.notify) > MAX_NOTIFY_CHARS:
        raise UsageError(
            f"`notify` has {len(spec.notify)} characters, wanted at most {MAX_NOTIFY_CHARS}",
            hint="write the commands to a script",
        )
    if spec.umask is not None and not 0 <= spec.umask <= 0o777:
        raise UsageError(f"`umask` is {spec.umask}, wanted 0 to {0o777}")
    if spec.progress is not None:
        check_progress(spec.progress)
    if spec.sharing in ("mps", "mig") and spec.gpus > 1:
        raise UsageError(f"a job of {spec.gpus} GPUs cannot share them by {spec.sharing}, which works for one")
    if spec.sharing in ("time", "mps") and spec.exclusive:
        raise UsageError(f"the job requests exclusive GPUs and sharing by {spec.sharing}: choose one")
    if spec.estimator is not None and spec.estimator not in ESTIMATORS:
        raise UnknownName("estimator", spec.estimator, ESTIMATORS)


def check_progress(pattern: str) -> None:
    """Check a pattern for the steps in a job's output; `runner/progress.py` applies it.

    Raises:
        UsageError: it is no regular expression, or has no group.
    """
    hint = r"write `tqdm`, or what is printed with the number in a group, e.g. `step (\d+)` or `(?P<rate>[\d.]+)it/s`"
    if pattern == "tqdm":
        return
    if len(pattern) > MAX_PATTERN_CHARS:
        raise UsageError(
            f"the pattern of the progress has {len(pattern)} characters, wanted at most {MAX_PATTERN_CHARS}"
        )
    try:
        groups = re.compile(pattern).groups
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"`{pattern}` is no regular expression: {error}", hint=hint) from error
    if not groups:
        raise UsageError(f"`{pattern}` has no group that finds a number", hint=hint)


def with_array_ids(specs: Sequence[JobSpec], first_id: int) -> list[JobSpec]:
    """Replace temporary array ids: an array is named after the id of its first task, counted from `first_id`."""
    firsts: dict[int, int] = {}
    named = []
    for job_id, spec in enumerate(specs, start=first_id):
        array = spec.array
        if array is not None and array.array_id < 0:
            named.append(replace(spec, array=replace(array, array_id=firsts.setdefault(array.array_id, job_id))))
        else:
            named.append(spec)
    return named


def with_changes(spec: JobSpec, changes: Mapping[str, object], job_id: int) -> JobSpec:
    """`spec` with `changes` to its fields.

    Raises:
        UsageError: a field cannot be updated, or not to this value.
    """
    unknown = sorted(changes.keys() - UPDATABLE_FIELDS.keys())
    if unknown:
        raise UsageError(f"`{unknown[0]}` of a job cannot be updated (can: {', '.join(sorted(UPDATABLE_FIELDS))})")
    encoded = encode(spec)
    try:
        new: JobSpec = decode(JobSpec, {**encoded, **changes})
    except CodecError as error:
        raise UsageError(f"job {job_id} cannot become that: {error.message}") from error
    _check(new)
    # Unchanged paths were expanded at submission and may contain `%` literally: expand only new ones.
    paths = {key: getattr(expand_paths(new, job_id), key) for key in ("stdout_path", "stderr_path") if key in changes}
    return replace(new, **paths)


def expand_paths(spec: JobSpec, job_id: int) -> JobSpec:
    """`spec` with the patterns in its output paths expanded, as Slurm does.

    `%j` is the id, `%A` that of the array, `%a` the index in it, `%b` that modulo 10, `%x` the name, `%u` the user,
    `%N` the host, `%n` and `%t` the numbers of node and task, which are 0, `%%` is `%`; a width, as in `%4a`, pads
    numbers with zeros. `%s` and `%J` stay: there are no job steps. Source: sbatch(1), "filename pattern".
    """
    if spec.stdout_path is None and spec.stderr_path is None:
        return spec
    array = spec.array
    words = {
        "j": str(job_id),
        "A": str(job_id if array is None else array.array_id),
        "a": str(0 if array is None else array.index),
        "b": str(0 if array is None else array.index % 10),
        "N": socket.gethostname().partition(".")[0],
        "n": "0",
        "t": "0",
        "x": spec.name.replace("/", "_"),
        "u": spec.user,
        "%": "%",
    }

    def expanded(path: str | None) -> str | None:
        return path and _MARK.sub(lambda found: words[found[2]].zfill(int(found[1] or 0)), path)

    return replace(spec, stdout_path=expanded(spec.stdout_path), stderr_path=expanded(spec.stderr_path))


@functools.lru_cache(maxsize=64)
def user_name(uid: int) -> str:
    """The login name of a user, or the uid if there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
