"""Fuzzing of requests, job files and `dcgmi` output. Parts of `reliability.py`."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from benchmarks._lib.daemon_process import server
from cotenant.cli.jobs.directives import parse_directives
from cotenant.cli.jobs.job_options import JobRequest, LaunchOptions
from cotenant.core.errors import CotenantError
from cotenant.core.job import JobSpec
from cotenant.core.units import GiB
from cotenant.gpus import dcgm
from cotenant.jobfiles.rad import parse_rad

DCGMI = Path(__file__).parents[2] / "tests" / "golden" / "dcgmi"

_WORDS = ("", "\0", "a+b\nc", "%j%A%a%x", "../..", "é\ud83d", "9" * 400, "-1", "nan", "null", "/etc/passwd", "x" * 5000)
_CALLS = ("cancel", "hold", "release", "requeue", "update", "events", "explain", "logs")

SCRIPT = """#!/bin/bash
#SBATCH --job-name=bert --time=2:00:00 --gres=gpu:a100:2
#SBATCH --mem=32G -a 1-10%2
#COTENANT --gpu-mem 12G -d afterok:17,singleton --begin now+2hours
#COTENANT --max-slowdown 1.5 --sharing mps -o out-%A_%a.txt --nice=5
python train.py
"""
RAD = """# a comment
conda activate tf
python /w/vgg.py --batch_size 64
vgg_64.model
/raid/datasets/imagenet
64
exclusive
2
11760
40000
5379.029213
16000
"""


def requests(count: int, seed: int) -> list[str]:
    """Send random requests to a real daemon."""
    rng = random.Random(seed)
    answers: Counter[str] = Counter()
    with server() as found:
        before = found.process.pid
        for number in range(count):
            if number % 10 == 0:
                _send_raw(found.socket, rng)
                answers["not HTTP"] += 1
                continue
            method, path, body = _some_request(rng)
            connection = http.client.HTTPConnection("localhost", timeout=60)
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(str(found.socket))
            connection.request(method, path, body)
            answers[str(connection.getresponse().status)] += 1
            connection.close()
        alive = found.process.pid == before and found.client.status()["pid"] == before
        log = (found.root / "log").read_text()
    crashes = answers.get("500", 0) + log.count("Traceback")
    counts = ", ".join(f"{status}: {times}" for status, times in sorted(answers.items()))
    end = "yes" if alive else "NO"
    return [f"{count} random requests ({counts}). Internal errors: {crashes}. Daemon alive: {end}."]


def texts(count: int, seed: int) -> list[str]:
    """Parse randomly corrupted files and outputs with cotenant's readers; they may raise only `CotenantError`."""
    rng = random.Random(seed)
    readers: dict[str, tuple[str, Callable[[str], object]]] = {
        "job scripts (`#COTENANT`, `#SBATCH`)": (SCRIPT, _read_script),
        "`.rad` job files": (RAD, lambda text: parse_rad(text, "fuzz.rad")),
        "`dcgmi discovery -l`": ((DCGMI / "discovery.txt").read_text(), dcgm.parse_discovery),
        "`dcgmi dmon`": ((DCGMI / "dmon.txt").read_text(), _read_dmon),
    }
    lines = [
        "",
        "| corrupted input | inputs | accepted | rejected with a reason | crashes |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    faults = []
    for name, (good, read) in readers.items():
        tally: Counter[str] = Counter()
        for _ in range(count):
            text = _damaged(good, rng)
            try:
                read(text)
                tally["read"] += 1
            except CotenantError:
                tally["refused"] += 1
            except Exception as error:  # noqa: BLE001 - every other exception counts as a crash
                tally["crash"] += 1
                faults.append(f"{name}: {error!r} of {text[:200]!r}")
        lines.append(f"| {name} | {count} | {tally['read']} | {tally['refused']} | {tally['crash']} |")
    return [*lines, "", "GPUs are read through NVML; cotenant does not parse output of nvidia-smi.", *faults[:10]]


def _read_script(text: str) -> object:
    with tempfile.NamedTemporaryFile("w", suffix=".sh", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
        file.flush()
        return parse_directives(Path(file.name), JobRequest, LaunchOptions)


def _read_dmon(text: str) -> object:
    table = dcgm.DmonTable()
    found = [row for line in text.splitlines() if (row := table.row(line)) is not None]
    for _, activity in found:
        for ratio in (activity.smact, activity.smocc, activity.drama):
            if ratio is not None and not 0 <= ratio <= 1:
                raise AssertionError(f"a ratio of {ratio}")
    return found


def _damaged(text: str, rng: random.Random) -> str:
    """`text` after one to four mutations: lines deleted, duplicated, moved, cut; words and characters replaced."""
    lines = text.split("\n")
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(lines))
        kind = rng.randrange(6)
        if kind == 0 and len(lines) > 1:
            del lines[at]
        elif kind == 1:
            lines.insert(rng.randrange(len(lines) + 1), lines[at])
        elif kind == 2:
            lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
        elif kind == 3:
            words = lines[at].split(" ")
            words[rng.randrange(len(words))] = rng.choice(_WORDS).encode("utf-8", "replace").decode()
            lines[at] = " ".join(words)
        elif kind == 4:
            place = rng.randrange(len(lines[at]) + 1)
            lines[at] = (
                lines[at][:place] + chr(rng.choice((0, 9, 39, 92, 0xFFFD, rng.randrange(32, 127)))) + lines[at][place:]
            )
        else:
            rng.shuffle(lines)
    return "\n".join(lines)


def _some_value(rng: random.Random, depth: int = 0) -> object:
    kind = rng.randrange(9 if depth < 3 else 7)
    if kind < 2:
        return rng.choice(_WORDS)
    if kind == 2:
        return rng.choice((0, 1, -1, 2**63, 10**30, True, False))
    if kind == 3:
        return rng.choice((0.5, -1e308, float("inf"), float("nan")))
    if kind in (4, 5, 6):
        return None
    if kind == 7:
        return [_some_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(("command", "env", "tasks", "array", "x")): _some_value(rng, depth + 1) for _ in range(3)}


def _some_request(rng: random.Random) -> tuple[str, str, bytes | None]:
    ref = rng.choice(("1", "0", "99999999999999999999", "-1", "x", "1_1", "%2e%2e", "1%00"))
    path = rng.choice(
        (
            "/v1/jobs",
            f"/v1/jobs/{ref}",
            f"/v1/jobs/{ref}/{rng.choice(_CALLS)}",
            f"/v1/ids?refs={ref},{ref}",
            f"/v1/jobs?last={ref}&since_s={ref}&states={ref}",
            "/v1/jobs/change",
            "/v1/prune",
            "/metrics",
            f"/v1/jobs/{ref}/wait?timeout_s={rng.choice(('0', 'x', '-1'))}&until={ref}",
            f"/{ref}",
        )
    )
    method = rng.choice(("GET", "POST", "POST", "PUT"))
    if method == "GET":
        return method, path, None
    job = {"command": ["/bin/true"], "workdir": "/", "env": {}, "name": "f", "declared_bytes": GiB, "hold": True}
    for _ in range(rng.randrange(3)):
        field = rng.choice((*JobSpec.__dataclass_fields__, "unknown"))
        job[field] = _some_value(rng)
    many = {
        "verb": rng.choice((*_CALLS, "x", None)),
        "reason": rng.choice(_WORDS),
        rng.choice(("refs", "filters")): rng.choice(
            ([ref], ["1", "2"], {"active": 1}, {"name": _some_value(rng)}, None)
        ),
    }
    old = {"older_than_s": rng.choice((0, 1e9, -1, "x", None, True)), "all_users": _some_value(rng), "dry_run": ref}
    body = rng.choice(({"jobs": [job]}, {"jobs": [job], "dry_run": True}, {"fields": job}, many, old, _some_value(rng)))
    data = json.dumps(body).encode()
    return method, path, data if rng.random() < 0.9 else data[: rng.randrange(len(data) + 1)]


def _send_raw(path: Path, rng: random.Random) -> None:
    with socket.socket(socket.AF_UNIX) as raw, contextlib.suppress(OSError):
        raw.settimeout(1)
        raw.connect(str(path))
        raw.sendall(rng.randbytes(rng.randrange(1, 300)))
        if rng.random() < 0.5:
            raw.sendall(b"POST /v1/jobs HTTP/1.1\r\ncontent-length: 100\r\n\r\n{")
