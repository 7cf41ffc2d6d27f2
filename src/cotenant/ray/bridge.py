"""A daemon's connection to Ray, in a process of its own: `python -m cotenant.ray.bridge ADDRESS SOCKET`.

A driver of Ray ends itself when the cluster's head is gone for a minute; a daemon must not. One connection to the
socket is one request, a line of JSON: `request`, `report` and `cancel` are answered by a line, `attach` by frames. It
ends when its stdin does, which its daemon holds.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import socketserver
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, cast

from cotenant.core.errors import CotenantError
from cotenant.ray.frames import MAX_CHUNK_BYTES, frame_of
from cotenant.ray.holder import CONCURRENCY, ID_CHARS, Holder

NAMESPACE = "cotenant"
CALL_TIMEOUT_S = 20.0


class Bridge:
    """The actors of one cluster that hold allocations, by their names."""

    def __init__(self, address: str) -> None:
        import ray

        self._ray = ray
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
        self._lock = threading.Lock()
        self._holders: dict[str, Any] = {}
        self._places: dict[str, Any] = {}
        self._ends: dict[str, Any] = {}

    # -- requests

    def request(self, name: str, keeper: Sequence[str], log: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Create an actor; it is pending until Ray has found a node."""
        actor = self._ray.remote(Holder).options(
            name=name,
            lifetime="detached",
            max_restarts=0,
            max_concurrency=CONCURRENCY,
            **{"num_cpus": 0, **options},
        )
        holder = actor.remote(list(keeper), log)
        self._follow(name, holder)
        return {"id": _id_of(holder)}

    def report(self, names: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
        """State of each allocation; one that Ray does not know, because it has ended, is absent."""
        with self._lock:
            found = {name: self._state(name, options) for name in names}
        return {"found": {name: state for name, state in found.items() if state is not None}}

    def cancel(self, name: str) -> dict[str, Any]:
        """End an allocation."""
        with self._lock:
            holder = self._holder(name)
            if holder is not None and self._ray.wait([self._places[name]], timeout=0)[0]:
                holder.end.remote()
            elif holder is not None:
                self._ray.kill(holder)
        return {}

    def attach(self, name: str, command: Sequence[str], orders: BinaryIO, output: socket.socket) -> None:
        """Relay an agent until it, or its daemon's end of the connection, has ended."""
        with self._lock:
            holder = self._holder(name)
        if holder is None:
            output.sendall(frame_of(2, b"Ray has no such actor any more\n"))
            return
        try:
            number = self._ray.get(holder.attach.remote(list(command)), timeout=CALL_TIMEOUT_S)
            threading.Thread(
                target=self._relay_orders, args=(holder, number, orders), name="orders", daemon=True
            ).start()
            while True:
                data, complaints = self._ray.get(holder.receive.remote(number))
                if not data:
                    output.sendall(frame_of(2, complaints))
                    return
                output.sendall(frame_of(1, data))
        except self._ray.exceptions.RayError as error:
            output.sendall(frame_of(2, f"{_why(error)}\n".encode()))

    def _relay_orders(self, holder: Any, number: int, orders: BinaryIO) -> None:
        with contextlib.suppress(OSError, ValueError, self._ray.exceptions.RayError):
            while data := cast("Any", orders).read1(MAX_CHUNK_BYTES):
                self._ray.get(holder.send.remote(number, data))
            self._ray.get(holder.send.remote(number, b""))

    # -- actors

    def _follow(self, name: str, holder: Any) -> None:
        self._holders[name], self._places[name] = holder, holder.where.remote()
        self._ends[name] = holder.stay.remote()

    def _holder(self, name: str) -> Any:
        if name not in self._holders:
            try:
                self._follow(name, self._ray.get_actor(name, namespace=NAMESPACE))
            except ValueError:  # the word of Ray for: none alive
                return None
        return self._holders[name]

    def _state(self, name: str, options: Mapping[str, Any]) -> dict[str, Any] | None:
        holder = self._holder(name)
        if holder is None:
            return None
        found = {"id": _id_of(holder), "node": "", "reason": ""}
        try:
            if self._ray.wait([self._ends[name]], timeout=0)[0]:
                self._ray.get(self._ends[name])
                self._ends[name] = holder.stay.remote()
            if not self._ray.wait([self._places[name]], timeout=0)[0]:
                return {**found, "state": "pending", "reason": self._why_pending(options)}
            _, node = self._ray.get(self._places[name])
        except self._ray.exceptions.ActorUnavailableError:
            self._follow(name, holder)  # its node may be lost: Ray finds out
            return {**found, "state": "ending", "reason": "Ray does not reach it"}
        except self._ray.exceptions.RayError as error:
            return {**found, "state": "ended", "reason": _why(error)}
        return {**found, "state": "running", "node": node}

    def _why_pending(self, options: Mapping[str, Any]) -> str:
        wanted = {"GPU": options["num_gpus"], "CPU": options.get("num_cpus", 0), "memory": options.get("memory", 0)}
        wanted |= options.get("resources", {})
        if "accelerator_type" in options:
            wanted[f"accelerator_type:{options['accelerator_type']}"] = 0.001  # what Ray requests
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if any(all(has.get(name, 0) >= count for name, count in wanted.items()) for has in nodes):
            return "a node of the cluster has what it requests, now or later"
        requested = ", ".join(f"{name} {count:g}" for name, count in wanted.items() if count)
        return f"no node of the cluster has {requested}"


def _id_of(holder: Any) -> str:
    return str(holder._actor_id.hex()[:ID_CHARS])


def _why(error: Exception) -> str:
    """The reason in an exception of Ray, which is a paragraph."""
    text = str(error)
    found = re.search(r"dead because (.*?)(?:\.|\n|$)", text) or re.search(r"^(?:ray\S*|\w*Error): (.*)$", text, re.M)
    return (found[1] if found else text.strip().partition("\n")[0])[:200] or type(error).__name__


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        bridge = cast("_Server", self.server).bridge
        line = self.rfile.readline()
        if not line:
            return
        message = json.loads(line)
        what = message.pop("do")
        with contextlib.suppress(OSError):
            if what == "attach":
                bridge.attach(**message, orders=cast("BinaryIO", self.rfile), output=self.connection)
                self.connection.shutdown(socket.SHUT_RDWR)  # ends the thread that reads orders
                return
            try:
                answer = getattr(bridge, what)(**message)
            except Exception as error:  # noqa: BLE001 (whatever Ray raises goes to its daemon)
                answer = {"error": _why(error)}
            self.wfile.write(json.dumps(answer).encode() + b"\n")


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, path: str, bridge: Bridge) -> None:
        self.bridge = bridge
        super().__init__(path, _Handler)


def _follow_daemon(path: str) -> None:
    while os.read(0, 4096):
        pass
    with contextlib.suppress(OSError):  # a daemon that was killed has not removed its folder
        os.unlink(path)  # noqa: PTH108
        os.rmdir(os.path.dirname(path))  # noqa: PTH106, PTH120
    os._exit(0)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until the end of stdin; says `ready` once it is connected."""
    address, path = sys.argv[1:] if argv is None else argv
    threading.Thread(target=_follow_daemon, args=(path,), name="daemon", daemon=True).start()
    ready = os.dup(1)
    os.dup2(2, 1)  # Ray prints
    try:
        bridge = Bridge(address)
    except (CotenantError, ImportError, ConnectionError, ValueError, RuntimeError, OSError) as error:
        print(f"error: {_why(error)}", file=sys.stderr)
        return 1
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108 (of the bridge before)
    os.umask(0o077)
    with _Server(path, bridge) as server:
        os.write(ready, b"ready\n")
        os.close(ready)
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
