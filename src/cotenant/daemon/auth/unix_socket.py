"""The daemon's unix socket, and the credentials of its peers."""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from cotenant.core.errors import BackendError, DaemonRunning, UsageError
from cotenant.daemon.config.paths import own_folder, private_folder
from cotenant.osutil.locks import LockHeldError, hold_lock

MAX_PATH_BYTES = 107
"""Source: unix(7), `sun_path` has 108 bytes with the closing NUL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Who sent a request: a process, by the kernel's word, or the holder of a token.

    Attributes:
        pid: 0 for a peer on the network.
        token: id of its token, or None on the unix socket.
        admin: whether the user's admin rights apply, if there are any.
    """

    pid: int
    uid: int
    gid: int
    token: str | None = None
    admin: bool = True


def peer_of(connection: socket.socket) -> Peer:
    """The process that connected. Source: SO_PEERCRED in unix(7)."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", raw)
    return Peer(pid=pid, uid=uid, gid=gid)


class ListeningSocket:
    """A socket on `path`. A lock beside it distinguishes a living daemon from a socket left behind.

    `for_all`: everybody may connect; otherwise its owner alone.

    Raises:
        DaemonRunning: another daemon has it.
        UsageError: the path is longer than the kernel allows.
        BackendError: it cannot be made.
    """

    def __init__(self, path: Path, *, for_all: bool = False) -> None:
        self.path = path
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            raise UsageError(
                f"socket path `{path}` is longer than {MAX_PATH_BYTES} bytes",
                hint="choose a shorter one with --socket",
            )
        self._for_all = for_all
        mode = 0o755 if for_all else 0o700
        own_folder(path.parent, mode=mode)
        self._lock = _lock(path)
        try:
            private_folder(path.parent, mode=mode)  # not before: others may use the socket of the daemon that has it
            self.socket = _bind(path, 0o666 if for_all else 0o600)
            self._inode = path.stat().st_ino
        except OSError as error:
            os.close(self._lock)
            raise BackendError(f"cannot listen on `{path}`: {error.strerror}") from error

    @property
    def is_lost(self) -> bool:
        """Whether the path leads to this socket no more: it was removed, as cleaners of /tmp do."""
        try:
            return self.path.stat().st_ino != self._inode
        except OSError:
            return True

    def rebind(self) -> socket.socket:
        """A socket on the path anew; open connections stay.

        Raises:
            DaemonRunning: another daemon has the path by now.
            BackendError, NotPermitted: it cannot be made.
        """
        private_folder(self.path.parent, mode=0o755 if self._for_all else 0o700)
        lock = self.path.with_name(f"{self.path.name}.lock")
        try:
            if not lock.exists() or lock.stat().st_ino != os.fstat(self._lock).st_ino:
                held, self._lock = self._lock, _lock(self.path)
                os.close(held)
            found = _bind(self.path, 0o666 if self._for_all else 0o600)
            self._inode = self.path.stat().st_ino
        except OSError as error:
            raise BackendError(f"cannot listen on `{self.path}`: {error.strerror}") from error
        return found

    def close(self) -> None:
        """Stop listening and remove the socket. The lock's file stays: removing it would race with the next."""
        self.socket.close()
        if not self.is_lost:
            self.path.unlink(missing_ok=True)
        os.close(self._lock)


def _lock(path: Path) -> int:
    try:
        return hold_lock(path.with_name(f"{path.name}.lock"))
    except LockHeldError as error:
        raise DaemonRunning(
            f"a daemon (pid {error.holder}) already listens on `{path}`",
            hint="see `cotenant daemon status`, or choose another --socket",
        ) from error


def _bind(path: Path, mode: int) -> socket.socket:
    """A listening socket. Its path may be left over from a daemon that died: the lock is ours, so no daemon uses it."""
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(str(path))
        path.chmod(mode)
        listening.listen(512)
        listening.setblocking(False)  # noqa: FBT003 (the standard library's signature)
    except OSError:
        listening.close()
        raise
    return listening
