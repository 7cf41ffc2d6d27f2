"""The job's own process: with its logs, its user and its folder, executed."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import signal
import stat
from typing import Any, NoReturn

from cotenant.runner import privileges

PR_SET_PDEATHSIG = 1  # prctl(2)

DEFAULTS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT)
"""Signals that the interpreter, or the runner, ignores, and a job does not."""


class NotStartable(Exception):
    """The job cannot run; the text is a sentence for people."""


def start(spec: dict[str, Any], folder: str) -> int:
    """The pid of the job's program, executed, with its logs, user and folder.

    Raises:
        NotStartable: it could not be; nothing of it is left.
    """
    return _spawned(spec, folder) if spec.get("uid") is None and not _is_protected() else _forked(spec, folder)


def _spawned(spec: dict[str, Any], folder: str) -> int:
    """The job as the runner's own user: nothing has to happen between fork and exec, so no memory is copied."""
    opened: list[int] = []
    try:
        opened.append(os.open("/dev/null", os.O_RDONLY))
        opened.extend(_open(spec, folder, each) for each in ("stdout", "stderr"))
        _enter(str(spec["cwd"]))
        program = _resolve(str(spec["argv"][0]), spec["env"])
        try:
            with privileges.file_mask(spec.get("umask")):
                return os.posix_spawn(
                    program,
                    [str(each) for each in spec["argv"]],
                    spec["env"],
                    file_actions=[(os.POSIX_SPAWN_DUP2, found, target) for target, found in enumerate(opened)],
                    setpgroup=0,
                    setsigmask=(),
                    setsigdef=DEFAULTS,
                )
        except OSError as error:
            raise _not_executed(program, error) from error
    finally:
        os.chdir("/")  # a runner of many attempts stays in nobody's folder
        for each in opened:
            os.close(each)


def _forked(spec: dict[str, Any], folder: str) -> int:
    """The job as another user, who opens files of their own, enters the folder and looks for the program."""
    status_read, status_write = os.pipe()
    runner = os.getpid()
    pid = os.fork()
    if pid == 0:
        _run_child(spec, folder, status_write, runner)
    os.close(status_write)
    text = b""
    while piece := os.read(status_read, 4096):
        text += piece
    os.close(status_read)
    if text:
        os.waitpid(pid, 0)
        raise NotStartable(text.decode(errors="replace"))
    return pid


def _run_child(spec: dict[str, Any], folder: str, status: int, runner: int) -> NoReturn:
    try:
        # Files and folders of the user's may hold us for ever. Who waits for the runner's end must then not wait for
        # ours, and what the runner did not live to start must not start.
        _close_all_but(status)
        os.setpgid(0, 0)
        for number in DEFAULTS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _reset_oom_score()
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        streams = {name: target for target, name in ((1, "stdout"), (2, "stderr"))}
        for name in [each for each in streams if is_private(spec, folder, each)]:
            os.dup2(_open(spec, folder, name), streams.pop(name))
        privileges.set_limits(spec.get("limits") or {})
        if spec.get("uid") is not None:
            _become(int(spec["uid"]), spec.get("user"))
        _end_with(runner, signal.SIGKILL)
        for name, target in streams.items():
            os.dup2(_open(spec, folder, name), target)
        _enter(str(spec["cwd"]))
        program = _resolve(str(spec["argv"][0]), spec["env"])
        _end_with(runner, 0)
        if spec.get("umask") is not None:
            os.umask(spec["umask"])
        try:
            os.execve(program, [str(each) for each in spec["argv"]], spec["env"])  # noqa: S606 - no shell is wanted
        except OSError as error:
            raise _not_executed(program, error) from error
    except NotStartable as error:
        os.write(status, str(error).encode(errors="replace"))
    except BaseException as error:  # noqa: BLE001 - between fork and exec everything must end here
        os.write(status, f"could not be started: {error}".encode(errors="replace"))
    os._exit(127)


@functools.cache
def _is_protected() -> bool:
    """Whether children of ours are less likely to end than others when the machine runs out of memory."""
    try:
        with open("/proc/self/oom_score_adj", "rb", buffering=0) as file:
            return file.read(16).startswith(b"-")
    except OSError:
        return False


def _reset_oom_score(path: str = "/proc/self/oom_score_adj") -> None:
    """Be no less likely to end than others when the machine runs out of memory; a daemon may be (`OOMScoreAdjust`)."""
    try:
        with open(path, "r+b", buffering=0) as file:
            if file.read(16).startswith(b"-"):
                file.seek(0)
                file.write(b"0\n")
    except OSError:
        return  # no such thing here


def _close_all_but(kept: int) -> None:
    """Close what is open besides 0, 1, 2 and `kept`.

    Not `os.closerange`: before Linux 5.9 it tries every number up to the limit, which in a container may be 2**30.
    """
    for each in [int(each) for each in os.listdir("/proc/self/fd")]:
        if each > 2 and each != kept:
            with contextlib.suppress(OSError):  # that of the list itself
                os.close(each)


def _end_with(runner: int, number: int) -> None:
    """Have the kernel send us the signal `number` when the runner ends, 0 for none; end now if it has ended."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if number and os.getppid() != runner:
        os._exit(127)


def is_private(spec: dict[str, Any], folder: str, stream: str) -> bool:
    """Whether it is a log in our folder, which is opened as ourselves; the user's own are opened as the user."""
    # Compared word by word: `<folder>/../../etc/x` would begin with the folder as well.
    return spec[stream] in (f"{folder}/stdout.log", f"{folder}/stderr.log")


def _open(spec: dict[str, Any], folder: str, stream: str) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOCTTY
    try:
        if is_private(spec, folder, stream):
            return os.open(spec[stream], flags, 0o600)
        with privileges.file_mask(spec.get("umask")):
            # Without O_NONBLOCK, a named pipe would hold us until somebody reads from it.
            found = os.open(spec[stream], flags | os.O_NONBLOCK, 0o666)
        os.set_blocking(found, True)
        return found
    except OSError as error:
        why = "it is a pipe that nobody reads" if error.errno == errno.ENXIO else _reason(error)
        raise NotStartable(f"cannot open `{spec[stream]}` for its output: {why}") from error


def _become(uid: int, user: str | None) -> None:
    try:
        privileges.become(uid, user)
    except privileges.UnknownUser as error:
        raise NotStartable(str(error)) from error
    except OSError as error:
        raise NotStartable(f"cannot become the user with the id {uid}: {_reason(error)}") from error


def _enter(cwd: str) -> None:
    try:
        os.chdir(cwd)
    except OSError as error:
        raise NotStartable(f"cannot enter the working directory `{cwd}`: {_reason(error)}") from error


def _resolve(word: str, env: dict[str, str]) -> str:
    """The file to execute, looked up as a shell would, in the job's environment and folder."""
    if "/" in word:
        candidates = [word]
    else:
        candidates = [f"{each or '.'}/{word}" for each in env.get("PATH", os.defpath).split(os.pathsep)]
    existing = [each for each in candidates if _is_file(each)]
    runnable = [each for each in existing if os.access(each, os.X_OK)]
    if runnable:
        return runnable[0]
    if existing:
        raise NotStartable(f"`{existing[0]}` is not executable")
    if "/" in word:
        raise NotStartable(f"no such file: `{word}`")
    raise NotStartable(f"no command named `{word}` on the PATH of the job")


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False  # in a folder of somebody else's, which a PATH may well name


def _not_executed(program: str, error: OSError) -> NotStartable:
    if error.errno == errno.ENOEXEC:
        reason = "it is no program and has no `#!` line"
    elif error.errno == errno.ENOENT:
        reason = "the interpreter of its `#!` line does not exist"
    else:
        reason = _reason(error)
    return NotStartable(f"cannot execute `{program}`: {reason}")


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
