"""The runner: sequential and resumable, with failures recorded, and its files."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter

import pytest

from cotenant.core.errors import DatasetError, UsageError
from cotenant.learn.data_collection.configs import config_id
from cotenant.learn.data_collection.generate import generate, write_configs
from cotenant.learn.data_collection.labeling import run_configs
from cotenant.learn.data_collection.ranges import load_ranges
from cotenant.learn.data_collection.run_log import LabelRecord, RunLog, read_records

CONFIGS = generate(load_ranges("mlp-small"), 6, 0)
IDS = [config_id(config_) for config_ in CONFIGS]


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


class Scripted:
    """Returns prepared labels; each takes 10 simulated seconds."""

    def __init__(self, clock=None, statuses=None, dies_at=None):
        self.clock = clock or Clock()
        self.statuses = dict(statuses or {})
        self.dies_at = dies_at
        self.seen = []

    def label(self, config):
        name = config_id(config)
        if name == self.dies_at:
            raise KeyboardInterrupt
        self.seen.append(name)
        self.clock.now_s += 10
        status = self.statuses.get(name, "ok")
        return LabelRecord(
            config_id=name, status=status, source="traced", at="2026-01-01T00:00:00Z", gpu="G", peak_bytes=5
        )

    def close(self):
        pass


def test_every_configuration_has_one_run_in_order(tmp_path):
    labeler = Scripted(statuses={IDS[2]: "oom", IDS[4]: "crash"})
    session = run_configs(CONFIGS, tmp_path / "deep" / "runs", labeler, now_s=labeler.clock)
    runs = read_records(tmp_path / "deep" / "runs")
    assert [run.config_id for run in runs] == IDS
    assert [run.status for run in runs] == ["ok", "ok", "oom", "ok", "crash", "ok"]
    assert (session.counts, session.left, session.elapsed_s) == ({"ok": 4, "oom": 1, "crash": 1}, 0, 60)


def test_progress_has_the_rate_and_the_time_left(tmp_path):
    reports = []
    labeler = Scripted()
    run_configs(CONFIGS, tmp_path, labeler, now_s=labeler.clock, on_run=reports.append)
    assert [(progress.done, progress.total, progress.elapsed_s, progress.left_s) for progress in reports[:2]] == [
        (1, 6, 10, 50),
        (2, 6, 20, 40),
    ]
    assert reports[1].line == f"[2/6] ok      {IDS[1]}  (20s so far, 40s left)"
    assert reports[-1].left_s == 0


def test_a_session_resumes_after_an_interruption(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run_configs(CONFIGS, tmp_path, Scripted(dies_at=IDS[3]))
    with pytest.raises(UsageError, match="is there already") as error:
        run_configs(CONFIGS, tmp_path, Scripted())
    assert "--resume" in error.value.hint
    reports = []
    labeler = Scripted()
    session = run_configs(CONFIGS, tmp_path, labeler, resume=True, on_run=reports.append, now_s=labeler.clock)
    assert labeler.seen == IDS[3:]
    assert Counter(run.config_id for run in read_records(tmp_path)) == Counter(IDS)
    assert (reports[0].done, reports[0].left_s, session.left) == (4, 20, 0)


def test_an_incomplete_last_record_is_run_again(tmp_path):
    run_configs(CONFIGS, tmp_path, Scripted())
    path = tmp_path / "runs.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert len(read_records(path)) == 5
    labeler = Scripted()
    run_configs(CONFIGS, tmp_path, labeler, resume=True)
    assert labeler.seen == IDS[5:]
    assert [run.config_id for run in read_records(path)] == IDS


def test_failures_are_repeated_only_with_retry(tmp_path):
    run_configs(CONFIGS, tmp_path, Scripted(statuses={IDS[1]: "timeout", IDS[2]: "oom"}))
    labeler = Scripted()
    run_configs(CONFIGS, tmp_path, labeler, resume=True)
    assert labeler.seen == []
    run_configs(CONFIGS, tmp_path, labeler, resume=True, retry=("timeout",))
    assert labeler.seen == [IDS[1]]
    run_configs(CONFIGS, tmp_path, labeler, resume=True, retry=("timeout",))
    assert labeler.seen == [IDS[1]], "its newest run is ok"


def test_no_run_begins_after_the_limit(tmp_path):
    labeler = Scripted()
    session = run_configs(CONFIGS, tmp_path, labeler, limit_s=25, now_s=labeler.clock)
    assert (labeler.seen, session.left) == (IDS[:3], 3)


def test_a_folder_has_one_writer(tmp_path):
    with RunLog(tmp_path, resume=False), pytest.raises(UsageError, match="another process writes to"):
        RunLog(tmp_path, resume=True)
    RunLog(tmp_path, resume=True).__exit__(None, None, None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "no run"),
        ("{}", "is not a complete LabelRecord"),
        ('{"config_id": 3}', "`value.config_id` is 3, wanted str"),
    ],
)
def test_a_line_that_is_not_a_record_is_refused(tmp_path, line, message):
    path = tmp_path / "runs.jsonl"
    run_configs(CONFIGS[:1], tmp_path, Scripted())
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(DatasetError) as error:
        read_records(path)
    assert message in error.value.message
    assert error.value.message.startswith(f"{path}:2: no run: ")


def test_a_run_is_one_line_of_json(tmp_path):
    run_configs(CONFIGS[:1], tmp_path, Scripted())
    (line,) = (tmp_path / "runs.jsonl").read_text().splitlines()
    assert json.loads(line)["config_id"] == IDS[0]
    assert json.loads(line)["smact"] is None


BLOCKED = """
import sys, time
from pathlib import Path
from cotenant.learn.data_collection.configs import config_id
from cotenant.learn.data_collection.generate import read_configs
from cotenant.learn.data_collection.labeling import run_configs
from cotenant.learn.data_collection.run_log import LabelRecord

class Blocked:
    def label(self, config):
        if len(seen) == 2:
            time.sleep(600)
        seen.append(config)
        return LabelRecord(config_id=config_id(config), status="ok", source="traced", at="", gpu="G", peak_bytes=5)

seen = []
configs = read_configs(Path(sys.argv[1]))
run_configs(configs, Path(sys.argv[2]), Blocked(), on_run=lambda progress: print(progress.done, flush=True))
"""


def test_a_session_resumes_after_sigkill(tmp_path):
    ranges = load_ranges("mlp-small")
    write_configs(tmp_path / "configs.txt", CONFIGS, ranges, 0)
    command = [sys.executable, "-c", BLOCKED, str(tmp_path / "configs.txt"), str(tmp_path / "runs")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert [process.stdout.readline() for _ in range(2)] == ["1\n", "2\n"]
        process.kill()
    assert process.returncode == -signal.SIGKILL
    labeler = Scripted()
    run_configs(CONFIGS, tmp_path / "runs", labeler, resume=True)
    assert labeler.seen == IDS[2:]
    assert [run.config_id for run in read_records(tmp_path / "runs")] == IDS
