"""Lists of jobs, their progress, and the time that is left."""

from __future__ import annotations

import contextlib
import errno

import pytest

from cotenant.core.errors import UsageError
from cotenant.slurm import pack
from cotenant.slurm.pack import parse_time_left, visible_gpus
from cotenant.slurm.pack_progress import PackProgress, read_lines
from cotenant.slurm.private_daemon import PackSettings


def test_lines_are_known_by_their_text_and_how_often_it_stands_there():
    first = read_lines("a\n\n# note\n b \na\n")
    assert [(line.number, line.text) for line in first] == [(1, "a"), (4, "b"), (5, "a")]
    assert len({line.key for line in first}) == 3
    moved = {line.key for line in read_lines("new\na\na\nb\n")}
    assert {line.key for line in first} < moved


def test_progress_survives_a_writer_that_was_killed(tmp_path):
    progress = PackProgress(tmp_path)
    progress.record([{"key": "a", "index": None, "state": "COMPLETED"}])
    progress.close()
    with (tmp_path / "done-0-1.jsonl").open("a") as file:
        file.write('{"key": "half')
    again = PackProgress(tmp_path)
    again.record([{"key": "b", "index": 3, "state": "FAILED"}])
    assert set(again.done()) == {("a", None), ("b", 3)}
    with pytest.raises(UsageError, match="another"):
        PackProgress(tmp_path)
    other = PackProgress(tmp_path, (1, 2))  # another part of the same list
    assert set(other.done()) == {("a", None), ("b", 3)}
    other.close()
    again.close()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0:30\n", 30.0),
        ("3:04", 184.0),
        ("2:03:04", 7384.0),
        ("1-02:03:04", 93784.0),
        ("INVALID", 0.0),
        ("UNLIMITED", None),
        ("NOT_SET", None),
        ("", None),
    ],
)
def test_the_time_that_is_left(text, wanted):
    assert parse_time_left(text) == wanted


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({}, None),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "1"),
        ({"SLURM_JOB_ID": "5", "CUDA_VISIBLE_DEVICES": "0,1"}, "0,1"),
    ],
)
def test_the_gpus_of_an_allocation(env, wanted):
    assert visible_gpus(env) == wanted


@pytest.mark.parametrize(
    "env",
    [{"SLURM_JOB_ID": "5"}, {"CUDA_VISIBLE_DEVICES": ""}, {"SLURM_JOB_ID": "5", "CUDA_VISIBLE_DEVICES": "NoDevFiles"}],
)
def test_an_allocation_without_gpus_is_refused(env):
    with pytest.raises(UsageError, match="no GPU"):
        visible_gpus(env)


def test_settings_are_a_configuration_of_the_daemon(tmp_path):
    from cotenant.daemon.config import loader

    settings = PackSettings(visible="0", simulate="2xA100-40GB", policy="best-fit", policy_options={"warmup_s": 0})
    path = tmp_path / 'a "b"' / "config.toml"
    path.parent.mkdir()
    path.write_text(settings.toml(path.parent))
    config = loader.load((path,), {}, {})
    assert (config.gpus.visible, config.policy.name, config.policy.options) == ("0", "best-fit", {"warmup_s": 0})
    assert (config.daemon.state_dir, config.scheduling.stop_grace_s) == (str(path.parent), 60.0)


class FullDisk(PackProgress):
    """Takes nothing for so many times."""

    def __init__(self, folder, times):
        super().__init__(folder)
        self.times = times

    def record(self, entries):
        self.times -= 1
        if self.times >= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().record(entries)


class Daemon:
    """Of a pack with two jobs, the second of which ends some polls after the first."""

    is_alive, env = True, {}

    def __init__(self):
        self.client = self
        self.polls = 0
        self.cancelled = False

    def submit(self, bodies):
        self.submitted = getattr(self, "submitted", 0) + 1
        return [{"id": self.submitted}]

    def jobs(self, *, active):
        self.polls += 1
        return [{"id": 2, "label": "2"}] if self.polls < 4 and not self.cancelled else []

    def job(self, job_id):
        fields = ("promised_bytes", "observed_bytes", "usage", "running_s")
        return {
            "id": job_id,
            "state": "COMPLETED",
            "exit_code": 0,
            "reason": "",
            "attempts": 1,
            **dict.fromkeys(fields),
        }

    def change_many(self, *_, **__):
        self.cancelled = True


@pytest.mark.parametrize(
    ("times", "done", "code"),
    [
        pytest.param(2, 2, 0, id="while a job runs"),
        pytest.param(5, 2, 0, id="when all have ended"),
        pytest.param(10**9, 0, 75, id="for good"),
    ],
)
def test_a_full_disk_ends_no_job(tmp_path, monkeypatch, times, done, code):
    """The jobs that ran were killed: exit code 1, `no space left on device`."""
    daemon, said, reported = Daemon(), [], []
    monkeypatch.setattr(pack, "private_daemon", lambda _: contextlib.nullcontext(daemon))
    monkeypatch.setattr(pack, "POLL_S", 0.0)
    monkeypatch.setattr(pack, "RECORD_TIMEOUT_S", 0.0 if times > 100 else 1000.0)
    jobs = [pack.PackJob(line=line, body={"env": {}}) for line in read_lines("a\nb\n")]
    progress = FullDisk(tmp_path, times)
    settings = PackSettings(visible=None)
    run = pack.Pack(
        jobs, progress, settings, remaining_s=lambda: None, margin_s=1, report=reported.append, warn=said.append
    )
    result = run.run()
    assert (len(result.done), len(reported), len(progress.done()), result.exit_code) == (done, done, done, code)
    assert said == ["cannot record what has ended: no space left on device; trying again"]
    assert not daemon.cancelled
    progress.close()


def test_what_a_full_disk_took_a_part_of_is_written_anew(tmp_path, monkeypatch):
    progress = PackProgress(tmp_path)
    file = progress._file
    monkeypatch.setattr(progress, "_file", HalfWriter(file))
    progress.record([{"key": "a", "index": None, "state": "COMPLETED"}])
    assert set(progress.done()) == {("a", None)}
    file.close()


class HalfWriter:
    def __init__(self, file):
        self._file = file
        self.fileno = file.fileno

    def write(self, data):
        return self._file.write(data[: max(1, len(data) // 2)])
