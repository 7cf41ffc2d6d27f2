"""What the web page costs the daemon, and how long a browser waits: 1,000 GPUs, 10,000 jobs, 50 clients.

    python -m benchmarks.daemon.web_page [--gpus 1000] [--jobs 10000] [--clients 50] [--seconds 20] [--write]

The GPUs are simulated; 8 of them are held by each of some real processes, and the other jobs are held in the queue.
The page is `cotenant daemon --web`. Clients read server-sent events as browsers do. CPU times are of the process, so
other work on the machine hardly matters to them. They are above those of a daemon without clients, which samples.
"""

from __future__ import annotations

import argparse
import html
import os
import re
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil

from benchmarks._lib.daemon_process import Server
from benchmarks._lib.results import add_write_option, commit, write_result

GPUS_PER_JOB = 8
LOADS = 5
WARMUP_S = 5.0


class Span(NamedTuple):
    """CPU seconds of the daemon and of the page's process, and what clients got, in `seconds`."""

    seconds: float
    daemon_s: float
    page_s: float
    updates: list[int]


class Reader(threading.Thread):
    """A client that reads events; `sizes` of the updates in bytes."""

    def __init__(self, page: httpx.Client) -> None:
        super().__init__(daemon=True)
        self._page = page
        self._stop_wanted = threading.Event()
        self.sizes: list[int] = []

    def run(self) -> None:
        headers = {"accept": "text/event-stream"}
        live = re.search(r'data-live="([^"]+)"', self._page.get("/").text)
        assert live is not None
        with self._page.stream("GET", html.unescape(live[1]), headers=headers) as response:
            for line in response.iter_lines():
                if line.startswith("data: "):
                    self.sizes.append(len(line))
                if self._stop_wanted.is_set():
                    return

    def stop(self) -> None:
        self._stop_wanted.set()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20.0)
    add_write_option(parser)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="cotenant-bench-"))
    server = Server(root, gpus=_servers(options.gpus), tick_s=2.0, flags=("--web", "127.0.0.1:0"))
    server.start()
    try:
        lines = _measured(server, options)
    finally:
        server.abandon([job["id"] for job in server.client.jobs(states="RUNNING")])
        shutil.rmtree(root, ignore_errors=True)
    print("\n".join(lines))
    if options.write:
        write_result("web_page", "\n".join(lines))
    return 0


def _measured(server: Server, options: argparse.Namespace) -> list[str]:
    running = options.gpus // GPUS_PER_JOB
    job = {"workdir": "/", "env": {"PATH": os.defpath}, "declared_bytes": 2**30}
    wide = {**job, "command": ["sleep", "3600"], "name": "wide", "gpus": GPUS_PER_JOB, "exclusive": True}
    server.client.submit([wide] * running)
    held = {**job, "command": ["true"], "name": "sweep", "hold": True}
    tasks = list(range(options.jobs - running))
    server.client.submit([{**held, "array": {"tasks": tasks, "limit": None}}])
    while server.client.status()["jobs"].get("RUNNING", 0) < running:
        time.sleep(1.0)
    url = server.client.status()["web"]
    loads = [_load(server, url) for _ in range(LOADS)]
    idle = _span(server, [], options.seconds)
    token = _token(server)
    one = _span(server, [_client(url, token)], options.seconds)
    same = _span(server, [_client(url, token) for _ in range(options.clients)], options.seconds)
    other = _span(server, [_client(url, _token(server)) for _ in range(options.clients)], options.seconds)
    first_s, daemon_s, page_s, size = (statistics.median(column) for column in zip(*loads, strict=True))
    rows = [
        _row("1", one, idle, 1),
        _row(f"{options.clients}, one user", same, idle, options.clients),
        _row(f"{options.clients}, a token each", other, idle, options.clients),
    ]
    taken = 100 * idle.daemon_s / idle.seconds
    goals = [
        ("first page after a login, s", 1.0, first_s),
        ("an update, KB, median of one client", 50.0, statistics.median(one.updates or [0]) / 1000),
        ("an update in which everything changes, KB", 50.0, _whole_update(_client(url, token)) / 1000),
        ("an update, KB, largest of all", 50.0, max((*one.updates, *same.updates, *other.updates, 0)) / 1000),
        ("CPU of the daemon for an update of one client, ms", 20.0, _update_ms(one, idle)),
        (f"CPU of the daemon for {options.clients} clients of one user, % of a core", 5.0, 100 * _share(same, idle)),
        ("the same with a token each, % of a core", 5.0, 100 * _share(other, idle)),
    ]
    text = f"""# The web page with {options.gpus} GPUs and {options.jobs} jobs

Commit {commit()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {options.seconds:g} s for each row.
CPU of the daemon above the {taken:.1f} % of a core that it takes without clients.

| goal | at most | found | |
| --- | --- | --- | --- |"""
    found = [
        f"| {name} | {limit:g} | {value:.2f} | {'met' if value <= limit else 'missed'} |"
        for name, limit, value in goals
    ]
    details = f"""
First page, median of {LOADS}: {1000 * daemon_s:.0f} ms CPU of the daemon and {1000 * page_s:.0f} ms of the page's
process; {size / 1000:.0f} KB of HTML.

| clients | daemon, % of a core | daemon, ms an update | page, % of a core | updates a client and minute | KB, median | KB, largest |
| --- | --- | --- | --- | --- | --- | --- |"""  # noqa: E501
    return [text, *found, details, *rows]


def _whole_update(client: httpx.Client) -> int:
    """Bytes of an update with every part of the page: what a stream begins with that does not say what its page has."""
    with client.stream("GET", "/now/events?gpus=1", headers={"accept": "text/event-stream"}) as response:
        return next(len(line) for line in response.iter_lines() if line.startswith("data: "))


def _share(span: Span, idle: Span) -> float:
    """Of a core: what the daemon takes above what it takes without clients."""
    return max(0.0, span.daemon_s / span.seconds - idle.daemon_s / idle.seconds)


def _update_ms(span: Span, idle: Span) -> float:
    """CPU of the daemon for one update of one client, in milliseconds."""
    return 1000 * _share(span, idle) * span.seconds / max(1, len(span.updates))


def _row(name: str, span: Span, idle: Span, clients: int) -> str:
    sizes = span.updates or [0]
    cells = (
        name,
        f"{100 * _share(span, idle):.1f}",
        f"{_update_ms(span, idle):.2f}" if len(span.updates) >= clients else "-",
        f"{100 * span.page_s / span.seconds:.1f}",
        f"{60 * len(span.updates) / clients / span.seconds:.0f}",
        f"{statistics.median(sizes) / 1000:.1f}",
        f"{max(sizes) / 1000:.1f}",
    )
    return f"| {' | '.join(cells)} |"


def _servers(gpus: int) -> str:
    """The simulated GPUs for `--simulate`, which takes at most 64 of one model at a time."""
    counts = [64] * (gpus // 64) + ([gpus % 64] if gpus % 64 else [])
    return ",".join(f"{count}xA100-40GB" for count in counts)


def _span(server: Server, clients: list[httpx.Client], seconds: float) -> Span:
    readers = [Reader(client) for client in clients]
    for reader in readers:
        reader.start()
    time.sleep(WARMUP_S)
    counts = [len(reader.sizes) for reader in readers]
    before, began_s = _cpu(server), time.perf_counter()
    time.sleep(seconds)
    after, ended_s = _cpu(server), time.perf_counter()
    updates = [size for reader, count in zip(readers, counts, strict=True) for size in reader.sizes[count:]]
    for reader in readers:
        reader.stop()
    for reader in readers:
        reader.join(30.0)
    return Span(ended_s - began_s, after[0] - before[0], after[1] - before[1], updates)


def _load(server: Server, url: str) -> tuple[float, float, float, float]:
    """A login and the first page: seconds, CPU seconds of the daemon and of the page, bytes."""
    client, before, began_s = _client(url, _token(server)), _cpu(server), time.perf_counter()
    answer = client.get("/")
    taken_s, after = time.perf_counter() - began_s, _cpu(server)
    answer.raise_for_status()
    time.sleep(6.0)  # the feed rests
    return taken_s, after[0] - before[0], after[1] - before[1], len(answer.content)


def _cpu(server: Server) -> tuple[float, float]:
    daemon = server.process
    (page,) = [child for child in daemon.children() if "cotenant.web" in " ".join(child.cmdline())]
    return _seconds(daemon), _seconds(page)


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _token(server: Server) -> str:
    made = server.client.create_token(name="benchmark", admin=True, user=None, lifetime_s=None)
    return str(made["text"])


def _client(url: str, token: str) -> httpx.Client:
    client = httpx.Client(base_url=url, timeout=120.0)
    assert client.post("/login", data={"token": token}).status_code == 303
    return client


if __name__ == "__main__":
    sys.exit(main())
