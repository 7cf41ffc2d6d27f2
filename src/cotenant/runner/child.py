"""The job's own process: forked, made ready, held at a gate until its start is on disk, then executed."""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

READY = b"\0"


class NotStartable(Exception):
    """The job cannot run; the text is a sentence for people."""


class Gated(NamedTuple):
    """A child that waits: write to `gate` to let it go, then read `status` until its end."""

    pid: int
    gate: int
    status: int


def fork(spec: dict[str, Any], folder: Path) -> Gated:
    """A child that has its logs, user and folder, and waits at the gate.

    Raises:
        NotStartable: it could not be made ready; it is gone and reaped.
    """
    gate_read, gate_write = os.pipe()
    status_read, status_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(gate_write)
        _run_child(spec, folder, gate_read, status_write)
    os.close(gate_read)
    os.close(status_write)
    child = Gated(pid, gate_write, status_read)
    first = os.read(status_read, len(READY))
    if first != READY:
        os.close(gate_write)
        raise _failure(child, first)
    return child


def release(child: Gated) -> None:
    """Let the child become the job's program.

    Raises:
        NotStartable: its program could not be executed; it is gone and reaped.
    """
    os.write(child.gate, READY)
    os.close(child.gate)
    first = os.read(child.status, 1)
    if first:
        raise _failure(child, first)
    os.close(child.status)


def _failure(child: Gated, first: bytes) -> NotStartable:
    text = first
    while more := os.read(child.status, 4096):
        text += more
    os.close(child.status)
    os.waitpid(child.pid, 0)
    return NotStartable(text.decode(errors="replace") or "the process ended before its program started")


def _run_child(spec: dict[str, Any], folder: Path, gate: int, status: int) -> NoReturn:
    try:
        os.setpgid(0, 0)
        _default_signals()
        _open_logs(spec, folder, private=True)
        if spec.get("uid") is not None:
            _become(int(spec["uid"]))
        _open_logs(spec, folder, private=False)
        _enter(str(spec["cwd"]))
        program = _resolve(str(spec["argv"][0]), spec["env"])
        os.write(status, READY)
        if os.read(gate, 1) != READY:
            os._exit(127)  # the runner died: nobody would tell how this ends, so it does not begin
        _execute(program, spec)
    except NotStartable as error:
        os.write(status, str(error).encode(errors="replace"))
    except BaseException as error:  # noqa: BLE001 - between fork and exec everything must end here
        os.write(status, f"could not be started: {error}".encode(errors="replace"))
    os._exit(127)


def _default_signals() -> None:
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _open_logs(spec: dict[str, Any], folder: Path, *, private: bool) -> None:
    """Put stdin, stdout and stderr in place: logs in our folder as ourselves, the user's own as the user."""
    if private:
        _redirect("/dev/null", 0, os.O_RDONLY, 0)
    for path, target in ((str(spec["stdout"]), 1), (str(spec["stderr"]), 2)):
        # Compared word by word: `<folder>/../../etc/x` would begin with the folder as well.
        if (path in (str(folder / "stdout.log"), str(folder / "stderr.log"))) is private:
            _redirect(path, target, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOCTTY, 0o600 if private else 0o666)


def _redirect(path: str, target: int, flags: int, mode: int) -> None:
    try:
        descriptor = os.open(path, flags, mode)
    except OSError as error:
        raise NotStartable(f"cannot open `{path}` for its output: {_words(error)}") from error
    os.dup2(descriptor, target)
    if descriptor != target:
        os.close(descriptor)


def _become(uid: int) -> None:
    import pwd

    try:
        account = pwd.getpwuid(uid)
    except KeyError as error:
        raise NotStartable(f"no user of this machine has the id {uid}") from error
    try:
        os.initgroups(account.pw_name, account.pw_gid)
        os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
        os.setresuid(uid, uid, uid)
    except OSError as error:
        raise NotStartable(f"cannot become user `{account.pw_name}`: {_words(error)}") from error


def _enter(cwd: str) -> None:
    try:
        os.chdir(cwd)
    except OSError as error:
        raise NotStartable(f"cannot enter the working directory `{cwd}`: {_words(error)}") from error


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
        return Path(path).is_file()
    except OSError:
        return False  # in a folder of somebody else's, which a PATH may well name


def _execute(program: str, spec: dict[str, Any]) -> NoReturn:
    try:
        os.execve(program, [str(each) for each in spec["argv"]], spec["env"])  # noqa: S606 - no shell is wanted
    except OSError as error:
        if error.errno == errno.ENOEXEC:
            reason = "it is no program and has no `#!` line"
        elif error.errno == errno.ENOENT:
            reason = "the interpreter of its `#!` line does not exist"
        else:
            reason = _words(error)
        raise NotStartable(f"cannot execute `{program}`: {reason}") from error
    sys.exit(127)


def _words(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
