"""Passes the stdin of `cotenant run` to the job: each attempt connects to a socket and gets all of it from the start.

A named pipe would not do: a job that opens it before its writer reads an end of file, and the attempt that follows an
out-of-memory failure would find it empty.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import tempfile
import threading
from pathlib import Path
from types import TracebackType

CHUNK_BYTES = 64 * 1024


class StdinRelay:
    """A context in which `path` is what a job may open as its stdin; None if there is nothing to pass.

    A file that nobody has read from is passed itself, a pipe or the rest of a file through a socket in a private
    folder. It is read only once a job has connected, whether or not the job reads it.
    """

    def __init__(self, descriptor: int) -> None:
        self.path: str | None = None
        self._descriptor = descriptor
        self._folder: str | None = None
        self._server: socket.socket | None = None
        self._spool = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the relay)
        self._size = 0
        self._is_complete = False
        self._changed = threading.Condition()

    def __enter__(self) -> StdinRelay:
        try:
            status = os.fstat(self._descriptor)
        except OSError:
            return self  # stdin is closed
        if stat.S_ISREG(status.st_mode) and os.lseek(self._descriptor, 0, os.SEEK_CUR) == 0:
            with contextlib.suppress(OSError):
                path = Path(f"/proc/self/fd/{self._descriptor}").readlink()
                if os.path.samestat(path.stat(), status):  # it may have been removed
                    self.path = str(path)
                    return self
        if stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode):
            self._folder = tempfile.mkdtemp(prefix="cotenant-")
            self._server = socket.socket(socket.AF_UNIX)
            self._server.bind(f"{self._folder}/stdin")
            self._server.listen()
            self.path = f"{self._folder}/stdin"
            threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _accept(self, server: socket.socket) -> None:
        is_read = False
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return  # closed
            if not is_read:
                threading.Thread(target=self._read, daemon=True).start()
                is_read = True
            threading.Thread(target=self._send, args=(connection,), daemon=True).start()

    def _read(self) -> None:
        """Append stdin to the spool, to its end."""
        while True:
            try:
                piece = os.read(self._descriptor, CHUNK_BYTES)
            except OSError:
                piece = b""
            with self._changed:
                os.pwrite(self._spool.fileno(), piece, self._size)
                self._size += len(piece)
                self._is_complete = not piece
                self._changed.notify_all()
            if not piece:
                return

    def _send(self, connection: socket.socket) -> None:
        """Send the spool to an attempt, as it grows; a job that has ended, or closed its stdin, gets no more."""
        sent = 0
        with connection, contextlib.suppress(OSError):
            while True:
                with self._changed:
                    while self._size <= sent and not self._is_complete:
                        self._changed.wait()
                    piece = os.pread(self._spool.fileno(), CHUNK_BYTES, sent)
                if not piece:
                    return
                connection.sendall(piece)
                sent += len(piece)
