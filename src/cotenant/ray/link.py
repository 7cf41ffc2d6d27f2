"""The launcher of an agent in an allocation of Ray: `python -m cotenant.ray.link SOCKET NAME COMMAND ...`.

It is to a pilot what srun is on Slurm: stdin, stdout and stderr of COMMAND, which runs beside the actor NAME. It
imports no Ray: the bridge, of which a daemon has one, is connected to the cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence

from cotenant.ray.frames import MAX_CHUNK_BYTES, read_frame

CONNECT_TIMEOUT_S = 45.0
"""Until a bridge that was just started answers: connecting takes seconds. The daemon waits a minute for a hello."""
POLL_S = 0.2


def main(argv: Sequence[str] | None = None) -> int:
    """Relay until the agent ends."""
    path, name, *command = sys.argv[1:] if argv is None else argv
    try:
        connection = _connect(path)
    except OSError as error:
        print(f"error: no bridge to Ray at `{path}`: {error.strerror}", file=sys.stderr)
        return 1
    with connection, connection.makefile("rb") as source:
        connection.sendall(json.dumps({"do": "attach", "name": name, "command": command}).encode() + b"\n")
        threading.Thread(target=_relay_orders, args=(connection,), name="orders", daemon=True).start()
        while (frame := read_frame(source)) is not None:
            channel, data = frame
            with contextlib.suppress(BrokenPipeError):
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(channel, rest) :]
    return 0


def _connect(path: str) -> socket.socket:
    give_up_s = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            if time.monotonic() > give_up_s:
                raise
            time.sleep(POLL_S)
        else:
            return connection


def _relay_orders(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := os.read(0, MAX_CHUNK_BYTES):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    sys.exit(main())
