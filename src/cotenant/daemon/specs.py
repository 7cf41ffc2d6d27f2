"""The job that a client describes, checked; who it is of, the kernel says."""

from __future__ import annotations

import functools
import os
import pwd
import re
from dataclasses import replace

from cotenant.core.codec import CodecError, decode
from cotenant.core.errors import UnknownName, UsageError
from cotenant.core.job import JobSpec
from cotenant.daemon.sockets import Peer
from cotenant.estimators import ESTIMATORS

MOST_GPUS = 1024
MOST_ATTEMPTS = 100

_MARK = re.compile("%[jx%]")


def spec_of(told: object, peer: Peer) -> JobSpec:
    """The spec in `told`, with the peer as its owner.

    A daemon that is not root's runs everything as its own user, who root then acts for.

    Raises:
        UsageError: `told` is no job, or one that cannot be.
    """
    if not isinstance(told, dict):
        raise UsageError("a job must be a JSON object")
    uid = peer.uid if os.getuid() == 0 else os.getuid()
    try:
        spec: JobSpec = decode(JobSpec, {**told, "user": user_name(uid), "uid": uid})
    except CodecError as error:
        raise UsageError(f"this is no job: {error.message}") from error
    _check(spec)
    return spec


def _check(spec: JobSpec) -> None:
    if not spec.command or not spec.command[0]:
        raise UsageError("the job has no command")
    texts = (*spec.command, spec.workdir, *spec.env, *spec.env.values(), spec.stdout_path or "", spec.stderr_path or "")
    if any("\0" in each for each in texts):
        raise UsageError("the job has a NUL byte in its command, its environment or a path")
    if any(not each or "=" in each for each in spec.env):
        raise UsageError("the job has an environment variable without a name, or with `=` in it")
    for path in (spec.workdir, spec.stdout_path, spec.stderr_path):
        if path is not None and not path.startswith("/"):
            raise UsageError(f"`{path}` is not an absolute path")
    if not 1 <= spec.gpus <= MOST_GPUS:
        raise UsageError(f"the job asks for {spec.gpus} GPUs, wanted 1 to {MOST_GPUS}")
    if not 1 <= spec.max_attempts <= MOST_ATTEMPTS:
        raise UsageError(f"the job may be tried {spec.max_attempts} times, wanted 1 to {MOST_ATTEMPTS}")
    if spec.estimator is not None and spec.estimator not in ESTIMATORS:
        raise UnknownName("estimator", spec.estimator, ESTIMATORS)
    for name in ("declared_bytes", "time_limit_s", "slowdown_bound"):
        value = getattr(spec, name)
        # Written so that NaN fails too.
        if value is not None and not 0 < value < 2**60:
            raise UsageError(f"`{name}` is {value}, wanted a number above zero")


def numbered(spec: JobSpec, job_id: int) -> JobSpec:
    """`spec` with `%j` in its output paths replaced by the id, `%x` by the name and `%%` by `%`."""
    if spec.stdout_path is None and spec.stderr_path is None:
        return spec
    words = {"%j": str(job_id), "%x": spec.name.replace("/", "_"), "%%": "%"}

    def expanded(path: str | None) -> str | None:
        return path and _MARK.sub(lambda found: words[found[0]], path)

    return replace(spec, stdout_path=expanded(spec.stdout_path), stderr_path=expanded(spec.stderr_path))


@functools.lru_cache(maxsize=64)
def user_name(uid: int) -> str:
    """The login name, or the number of a user without one."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
