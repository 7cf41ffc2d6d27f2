"""Starts the job's program with its logs, as its user, in its folder."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import signal
import socket
import stat
from typing import Any, NoReturn

from cotenant.runner import privileges

PR_SET_PDEATHSIG = 1  # prctl(2)

DEFAULTS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT)
"""Signals that the interpreter or the runner ignores; a job gets the default action."""


class NotStartable(Exception):
    """The job cannot be started; the text is a sentence for people."""


class NoRoom(NotStartable):
    """The disk with the folder of the attempt is full: another attempt may start later."""


def start(spec: dict[str, Any], folder: str) -> int:
    """Start the job's program; returns its pid.

    Raises:
        NotStartable: it cannot be started; nothing of it is left.
    """
    return _spawned(spec, folder) if spec.get("uid") is None and not _is_protected() else _forked(spec, folder)


def _spawned(spec: dict[str, Any], folder: str) -> int:
    """Start the job as the runner's own user: posix_spawn(3) uses vfork, which copies no page tables."""
    opened: list[int] = []
    try:
        opened.append(_open_stdin(spec))
        opened.extend(_open(spec, folder, stream) for stream in ("stdout", "stderr"))
        _enter(str(spec["cwd"]))
        program = _resolve(str(spec["argv"][0]), spec["env"])
        try:
            with privileges.file_mask(spec.get("umask")):
                return os.posix_spawn(
                    program,
                    [str(word) for word in spec["argv"]],
                    spec["env"],
                    file_actions=[
                        (os.POSIX_SPAWN_DUP2, descriptor, target) for target, descriptor in enumerate(opened)
                    ],
                    setpgroup=0,
                    setsigmask=(),
                    setsigdef=DEFAULTS,
                )
        except OSError as error:
            raise _not_executed(program, error) from error
    finally:
        os.chdir("/")  # a reusable runner must not keep the folder of a job busy
        for descriptor in opened:
            os.close(descriptor)


def _forked(spec: dict[str, Any], folder: str) -> int:
    """Start the job as another user, with whose rights it opens its files, enters its folder, finds its program."""
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
        # Opening the user's files and folders may block for ever. So this process closes the runner's channel, lest the
        # engine wait for it, and ends with the runner, lest a job start without supervision.
        _close_all_but(status)
        os.setpgid(0, 0)
        for number in DEFAULTS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _reset_oom_score()
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        streams = {name: target for target, name in ((1, "stdout"), (2, "stderr"))}
        for name in [stream for stream in streams if is_private(spec, folder, stream)]:
            os.dup2(_open(spec, folder, name), streams.pop(name))
        privileges.set_limits(spec.get("limits") or {})
        if spec.get("uid") is not None:
            _become(int(spec["uid"]), spec.get("user"))
        _end_with(runner, signal.SIGKILL)
        if spec.get("stdin") is not None:
            os.dup2(_open_stdin(spec), 0)
        for name, target in streams.items():
            os.dup2(_open(spec, folder, name), target)
        _enter(str(spec["cwd"]))
        program = _resolve(str(spec["argv"][0]), spec["env"])
        _end_with(runner, 0)
        if spec.get("umask") is not None:
            os.umask(spec["umask"])
        try:
            os.execve(program, [str(word) for word in spec["argv"]], spec["env"])  # noqa: S606 - no shell is wanted
        except OSError as error:
            raise _not_executed(program, error) from error
    except NotStartable as error:
        os.write(status, str(error).encode(errors="replace"))
    except BaseException as error:  # noqa: BLE001 - between fork and exec everything must end here
        os.write(status, f"could not be started: {error}".encode(errors="replace"))
    os._exit(127)


@functools.cache
def _is_protected() -> bool:
    """Whether the kernel's OOM killer spares this process, and its children with it (proc_pid_oom_score_adj(5))."""
    try:
        with open("/proc/self/oom_score_adj", "rb", buffering=0) as file:
            return file.read(16).startswith(b"-")
    except OSError:
        return False


def _reset_oom_score(path: str = "/proc/self/oom_score_adj") -> None:
    """Give up a negative score, which a job would inherit from a daemon with systemd's `OOMScoreAdjust`."""
    try:
        with open(path, "r+b", buffering=0) as file:
            if file.read(16).startswith(b"-"):
                file.seek(0)
                file.write(b"0\n")
    except OSError:
        return  # no /proc, or not our file


def _close_all_but(spared: int) -> None:
    """Close all descriptors but 0, 1, 2 and `spared`.

    Not by `os.closerange`: before Linux 5.9 (close_range(2)) it tries each number up to the limit, 2**30 in containers.
    """
    for descriptor in [int(name) for name in os.listdir("/proc/self/fd")]:
        if descriptor > 2 and descriptor != spared:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(descriptor)


def _end_with(runner: int, number: int) -> None:
    """Let the kernel send signal `number`, 0 for none, to this process when the runner ends; exit if it has ended."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if number and os.getppid() != runner:
        os._exit(127)


def is_private(spec: dict[str, Any], folder: str, stream: str) -> bool:
    """Whether a log is in the attempt's folder; such logs are opened as the runner's user, others as the job's user."""
    # Compared as a whole: `<folder>/../../etc/x` begins with the folder, too.
    return spec[stream] in (f"{folder}/stdout.log", f"{folder}/stderr.log")


def _open(spec: dict[str, Any], folder: str, stream: str) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOCTTY
    try:
        if is_private(spec, folder, stream):
            return os.open(spec[stream], flags, 0o600)
        with privileges.file_mask(spec.get("umask")):
            # Without O_NONBLOCK, open(2) of a named pipe blocks until a process reads from it.
            descriptor = os.open(spec[stream], flags | os.O_NONBLOCK, 0o666)
        os.set_blocking(descriptor, True)
        return descriptor
    except OSError as error:
        why = "it is a pipe without a reader" if error.errno == errno.ENXIO else _reason(error)
        raise NotStartable(f"cannot open `{spec[stream]}` for its output: {why}") from error


def _open_stdin(spec: dict[str, Any]) -> int:
    path = spec.get("stdin") or "/dev/null"
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            # Without O_NONBLOCK, open(2) of a named pipe blocks until a process writes to it.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
            os.set_blocking(descriptor, True)
            return descriptor
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            return connection.detach()
    except OSError as error:
        raise NotStartable(f"cannot open `{path}` as its input: {_reason(error)}") from error


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
        candidates = [f"{part or '.'}/{word}" for part in env.get("PATH", os.defpath).split(os.pathsep)]
    existing = [candidate for candidate in candidates if _is_file(candidate)]
    runnable = [candidate for candidate in existing if os.access(candidate, os.X_OK)]
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
        return False  # e.g. in a folder of another user, which a PATH may name


def _not_executed(program: str, error: OSError) -> NotStartable:
    if error.errno == errno.ENOEXEC:
        reason = "it is not a program and has no `#!` line"
    elif error.errno == errno.ENOENT:
        reason = "the interpreter of its `#!` line does not exist"
    else:
        reason = _reason(error)
    return NotStartable(f"cannot execute `{program}`: {reason}")


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
