"""Files of an attempt: partial or foreign ones are none, and a tombstone is final."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from cotenant.core.codec import encode
from cotenant.core.ports import AttemptRef
from cotenant.engines.attempt_dir import AttemptDir


def test_partial_and_foreign_files_are_ignored_and_a_tombstone_is_final(tmp_path):
    attempt_dir = AttemptDir(tmp_path, AttemptRef(job_id=1, attempt=1))
    attempt_dir.path.mkdir(parents=True)
    (attempt_dir.path / "started.json").write_text("[]")
    for torn in ("{ half", "", "{}", '{"reason": "exited"}', "\0" * 100, "[]"):
        (attempt_dir.path / "result.json").write_text(torn)
        assert attempt_dir.exited("test") is None, torn
    assert attempt_dir.started("test") is None
    assert attempt_dir.runner() is None
    assert attempt_dir.tombstone()
    assert attempt_dir.tombstone()
    assert [path.name for path in Path(attempt_dir.path).iterdir() if path.name.startswith(".claim")] == []


RESULT = {
    "reason": "exited",
    "exit_code": 1,
    "signal": None,
    "detail": "",
    "oom": {"exception": True, "tried_bytes": 2**30, "in_use_bytes": 2**31},
    "ended_at_s": 1.7e9,
    "elapsed_s": 60,
}
STARTED = {"runner": {"pid": 77, "start_ticks": 1, "boot_id": "b"}, "started_at_s": 1.7e9}
FORGED = [None, True, "x", "\ud800", "9" * 400, -1, 10**400, 1e308, float("nan"), float("inf"), [], {}, [[]], 2**63]


@pytest.fixture
def attempt_dir(tmp_path):
    attempt_dir = AttemptDir(tmp_path, AttemptRef(job_id=1, attempt=1))
    attempt_dir.path.mkdir(parents=True)
    return attempt_dir


def test_a_result_is_an_exit(attempt_dir):
    attempt_dir.write("result.json", RESULT, durable=False)
    exited = attempt_dir.exited("test")
    assert (exited.exit.oom.in_use_bytes, exited.exit.elapsed_s) == (2**31, 60.0)


@pytest.mark.parametrize(
    ("forged", "is_exit"),
    [
        pytest.param({"oom": {"exception": 1, "tried_bytes": 10**400, "in_use_bytes": 0.5}}, True, id="evidence"),
        pytest.param({"exit_code": 10**400}, False, id="exit code"),
        pytest.param({"reason": "promoted"}, False, id="reason"),
        pytest.param({"ended_at_s": float("nan")}, False, id="time"),
        pytest.param({"ended_at_s": 10**400}, False, id="endless time"),
    ],
)
def test_values_out_of_range_are_not_believed(attempt_dir, forged, is_exit):
    attempt_dir.write("result.json", RESULT | forged, durable=False)
    exited = attempt_dir.exited("test")
    assert (exited is not None) == is_exit
    if exited is not None:
        oom = exited.exit.oom
        assert (oom.exception, oom.tried_bytes, oom.in_use_bytes) == (False, None, None)


def test_whatever_a_forger_writes_is_an_event_or_nothing(attempt_dir):
    rng = random.Random(7)
    for _ in range(1000):
        for name, honest in (("result.json", RESULT), ("started.json", STARTED)):
            forged = json.loads(json.dumps(honest))
            part = rng.choice([forged, *(value for value in forged.values() if isinstance(value, dict))])
            part[rng.choice(list(part))] = rng.choice(FORGED)
            (attempt_dir.path / name).write_text(json.dumps(forged))
        for event in (attempt_dir.started("test"), attempt_dir.exited("test")):
            if event is not None:
                json.dumps(encode(event), allow_nan=False).encode()
