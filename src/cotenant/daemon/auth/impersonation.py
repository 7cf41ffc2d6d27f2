"""Acting as another user, so that files and programs of a user are opened and run with that user's rights.

Run as a script, on the standard library alone, it opens one file and sends the descriptor back:

    python -I -S users.py SOCKET PATH
"""

from __future__ import annotations

import array
import errno
import os
import socket
import stat
import subprocess
import sys
from typing import Any

OPEN_TIMEOUT_S = 10.0
PUBLIC_VARIABLES = frozenset(
    ("PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LANG", "LANGUAGE", "TZ")
)
"""What our interpreter needs to find its modules and libraries, and to print; `LC_*` too."""
NOBODY = 65534
"""The user without rights of their own. Source: `overflowuid` in user_namespaces(7)."""


def identity(uid: int) -> dict[str, Any]:
    """Arguments of `Popen` that run a child as the user `uid`, with their groups; {} for the daemon's own user.

    Raises:
        KeyError: this machine has no such user.
    """
    if uid == os.geteuid():
        return {}
    import pwd

    account = pwd.getpwuid(uid)
    groups = os.getgrouplist(account.pw_name, account.pw_gid)
    return {"user": uid, "group": account.pw_gid, "extra_groups": groups}


def home_of(uid: int) -> dict[str, str]:
    """Environment variables with the name, home and shell of a user."""
    import pwd

    account = pwd.getpwuid(uid)
    return {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name, "SHELL": account.pw_shell}


def environment_of(uid: int) -> dict[str, str]:
    """The environment of a process that runs as the user `uid`: ours if we are that user, else `PUBLIC_VARIABLES`.

    A user reads the environment of their processes in /proc/PID/environ, and ours may hold secrets.

    Raises:
        KeyError: this machine has no such user.
    """
    if uid == os.geteuid():
        return dict(os.environ)
    public = {name: value for name, value in os.environ.items() if name in PUBLIC_VARIABLES or name.startswith("LC_")}
    return {"PATH": os.defpath, **public, **home_of(uid)}


def why_root_only() -> str | None:
    """Why other users cannot run this Python; None if they can, or if the daemon is not root's.

    They cannot if Python or the virtual environment is in root's home.
    """
    if os.geteuid() != 0:
        return None
    command = [sys.executable, "-I", "-S", "-c", "import sys; open(sys.argv[1]).close()", __file__]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd="/",
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
            timeout=OPEN_TIMEOUT_S,
            check=False,
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        closed = closed_folder(sys.executable)
        where = "" if closed is None else f", `{closed}` is closed to others"
        return f"`{sys.executable}`: {(getattr(error, 'strerror', None) or str(error)).lower()}{where}"
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return None if done.returncode == 0 else f"`{sys.executable}`: {lines[-1] if lines else done.returncode}"


def closed_folder(path: str) -> str | None:
    """The outermost folder on the way to `path`, or to what it links to, that not all users may enter; None if none."""
    from pathlib import Path  # not at import: this file is a program of its own, which starts for each file it opens

    found = Path(path).absolute()
    folders = (*reversed(found.parents), *reversed(found.resolve().parents))
    closed = (folder for folder in folders if folder.exists() and not folder.stat().st_mode & stat.S_IXOTH)
    return next(map(str, closed), None)


def open_as(uid: int, path: str) -> int:
    """Open the regular file `path` for reading, with the rights of `uid`; returns a descriptor.

    The path is the user's choice: it may be, or become at any moment, a link to a file that only root may read.

    Raises:
        OSError: the user may not read it, it does not exist, or it is no regular file.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(OPEN_TIMEOUT_S)
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", __file__, str(theirs.fileno()), path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd="/",
                env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
                pass_fds=(theirs.fileno(),),
                timeout=OPEN_TIMEOUT_S,
                check=False,
                **identity(uid),
            )
        except (subprocess.TimeoutExpired, KeyError) as error:
            raise PermissionError(1, f"cannot act as uid {uid}", path) from error
        if done.returncode != 0:
            words = done.stderr.decode(errors="replace").strip()
            number = int(words) if words.isdigit() else 5
            raise OSError(number, os.strerror(number), path)
        space_bytes = socket.CMSG_SPACE(array.array("i").itemsize)
        # Close-on-exec from the start: another thread may start a process of another user at any moment.
        _, ancillary, _, _ = ours.recvmsg(1, space_bytes, socket.MSG_CMSG_CLOEXEC)
        if not ancillary:  # the kernel leaves the descriptor out where this process may have no more
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        (descriptor,) = array.array("i", ancillary[0][2])
    return descriptor


def main(channel: int, path: str) -> int:
    """Open `path` and send the descriptor; returns the exit code, and prints errno to stderr."""
    try:
        # open(2) of a FIFO without O_NONBLOCK blocks until there is a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise PermissionError(1, "no regular file")
        with socket.socket(fileno=channel) as back:
            rights = array.array("i", [descriptor])
            back.sendmsg([b"f"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    except OSError as error:
        print(error.errno, end="", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2]))
