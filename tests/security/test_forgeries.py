"""10,000 forged answers of estimators and runners, step files, trace caches and checkpoints, read by what reads them.

Nothing may raise, and what is accepted must be something that the journal can hold and the scheduler can handle.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import random
import tempfile
from pathlib import Path

import pytest

from benchmarks._lib.forgeries import forged_bytes
from builders import an_estimate
from cotenant.core.codec import decode, encode, to_json
from cotenant.core.estimate import MemoryProfile
from cotenant.core.events import AttemptExited, AttemptStarted, EstimateReady, Journaled
from cotenant.core.ports import AttemptRef
from cotenant.core.trace import MemoryTrace
from cotenant.daemon.estimation.answer import MAX_ERROR_CHARS, parse_answer
from cotenant.daemon.monitoring.telemetry_checkpoint import TelemetryFile
from cotenant.daemon.services.progress import ProgressService
from cotenant.engines.attempt_dir import AttemptDir
from cotenant.estimators.trace_cache import SCHEMA, TraceCache
from cotenant.gpus.timeseries import GpuTimeSeries
from cotenant.scheduling.manager import Manager
from cotenant.scheduling.policies import create
from cotenant.tracing.process import serialization
from managers import Life
from traces import steps

REF = AttemptRef(job_id=1, attempt=1)
PROCESS = {"pid": 4242, "start_ticks": 99, "boot_id": "b" * 36}
RESULT = {
    "reason": "exited",
    "exit_code": 1,
    "signal": None,
    "detail": "",
    "oom": {"exception": True, "message": False, "tried_bytes": 2**30, "in_use_bytes": 2**31},
    "started_at_s": 5.0,
    "ended_at_s": 9.0,
    "elapsed_s": 4.0,
    "user_s": 1.0,
    "system_s": 0.1,
    "max_rss_bytes": 2**20,
}
STARTED = {"runner": PROCESS, "session": 4242, "started_at_s": 5.0}
CLAIM = {"by": "runner", "process": PROCESS, "at_s": 5.0}


@pytest.fixture
def rng(request):
    """A generator of the test's own, the same in each run."""
    return random.Random(request.node.name)


@pytest.fixture
def folder():
    """A folder in memory where there is one: ext4 flushes a file that is truncated and written again, in 5 ms each."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if os.access(shm, os.W_OK) else None) as name:
        yield Path(name)


def accepted(event):
    """Check that an event of job 1 can be journaled, read again, and handled by a manager that runs the job."""
    assert decode(Journaled, json.loads(to_json(event))) == event
    life = Life()
    life.submit(1, 8)
    if not isinstance(event, AttemptStarted):
        life.start()
    life.manager.handle(event)
    life.sample()
    life.manager.explain(1)


def test_3000_answers_of_estimators(rng):
    honest = [
        {
            "estimate": encode(an_estimate(8, estimator="traced", warnings=("w",), breakdown_bytes={"parameter": 5})),
            "profile": encode(MemoryProfile(category_bytes={"parameter": (1, 2)}, phases=((0, "load"),))),
        },
        {"error": {"kind": "import", "message": "m", "hint": None}},
    ]
    estimates = errors = 0
    for number in range(3000):
        answer = parse_answer(forged_bytes(honest[number % 8 == 0], rng))
        assert (answer.estimate is None) == (answer.error is not None)
        assert len(answer.error or "") <= MAX_ERROR_CHARS
        found = {"estimate": answer.estimate, "error": answer.error, "is_fatal": answer.is_fatal}
        event = EstimateReady(at_s=1.0, cause="estimator", job_id=1, **found)
        if answer.estimate is None:
            errors += 1
            to_json(event)
        else:
            estimates += 1
            to_json(event)
            if number % 5 == 0:
                accepted(event)
    assert min(estimates, errors) > 100


def test_3000_files_of_runners(rng, folder):
    attempt = AttemptDir(folder, REF)
    attempt.path.mkdir(parents=True)
    honest = {"result.json": RESULT, "started.json": STARTED, "claim": CLAIM, ".result.reserved": {"job": PROCESS}}
    for name, value in honest.items():
        (attempt.path / name).write_text(json.dumps(value))
    events = 0
    for number in range(3000):
        name = list(honest)[number % len(honest)]
        (attempt.path / name).write_bytes(forged_bytes(honest[name], rng))
        attempt.recorded_processes()
        for event in (attempt.started("engine"), attempt.exited("engine")):
            if isinstance(event, (AttemptStarted, AttemptExited)):
                events += 1
                to_json(event)
                if number % 20 == 0:
                    accepted(event)
        (attempt.path / name).write_text(json.dumps(honest[name]))
    assert events > 1000


STEP_WORDS = (b"nan", b"-1", b"inf", b"1e400", b"9" * 100, b"\xff", b"", b"0x10", b"1_000", b" ", b"\0", b"12.5")


def test_2000_step_files(rng, folder):
    service = ProgressService(folder / "progress")
    path = Path(service.create_file(1, os.geteuid()))
    rates = 0
    for number in range(2000):
        count, at_s = f"{number}.0".encode(), f"{number}.5".encode()
        words = [rng.choice(STEP_WORDS) if rng.random() < 0.3 else word for word in (count, at_s)]
        ends = (b"\n", b"", b"\n" * 200, b" x\n", b"\r\n")
        path.write_bytes(b" ".join(words) + (b"\n" if rng.random() < 0.7 else rng.choice(ends)))
        rate = service.observe(REF)
        if rate is not None:
            rates += 1
            assert all(math.isfinite(value) for value in rate)
            assert min(rate) > 0
    assert rates > 100


@pytest.mark.parametrize("target", ["link", "fifo", "folder", "socket"])
def test_a_step_file_that_is_none_is_not_read(tmp_path, target):
    secret = tmp_path / "secret"
    secret.write_text("100.0 200.0\n")
    service = ProgressService(tmp_path / "progress")
    path = Path(service.create_file(1, os.geteuid()))
    path.write_text("1.0 1.0\n")
    assert service.observe(REF) is None
    path.unlink()
    make = {"link": lambda: path.symlink_to(secret), "fifo": lambda: os.mkfifo(path), "folder": path.mkdir}
    make.get(target, lambda: os.mknod(path, 0o140600))()
    assert service.observe(REF) is None


def test_1000_trace_caches(rng, folder):
    trace = steps(count=1)
    manifest = {"schema": SCHEMA, "sources": [], "sites": {}, "before": {}, "after": {}}
    honest = (manifest, serialization.trace_to_dict(trace))
    cache = TraceCache(folder)
    path = folder / "key.json.gz"
    traces = 0
    for number in range(1000):
        lines = [json.dumps(value).encode() for value in honest]
        forged = number % 2
        lines[forged] = forged_bytes(honest[forged], rng).replace(b"\n", b" ")
        content = gzip.compress(b"\n".join(lines) + b"\n", 1)
        if number % 20 == 0:
            content = content[: rng.randrange(len(content))] + rng.randbytes(3)
        path.write_bytes(content)
        found = cache.get("key", {})
        assert found is None or isinstance(found, MemoryTrace)
        traces += found is not None
    assert 10 < traces < 990


def test_1000_checkpoints(rng, folder):
    """Root's own files, unless the daemon is a user's: then every job may write to them."""
    life = Life()
    life.submit(1, 8)
    life.start()
    life.sample()
    honest = life.manager.telemetry_state()
    path = folder / "telemetry.json"
    for _ in range(700):
        path.write_bytes(forged_bytes(honest, rng))
        manager = Manager(create("most-memory"))
        TelemetryFile(path).restore(manager)
    series = folder / "gpu-history.jsonl"
    point = ["GPU-0", 840.0, 60.0, 100.0, 0.5, None, None, 0.9, 200.0, 110.0, 12000.0]
    for _ in range(300):
        series.write_bytes(b"\n".join(forged_bytes(point, rng) for _ in range(2)))
        GpuTimeSeries(series)
