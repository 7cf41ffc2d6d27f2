"""What Prolog starts beside a job of Slurm and Epilog ends, without Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

import fake_mps
from cotenant.core.errors import BackendError, UsageError
from cotenant.osutil import procfs
from cotenant.simserver.server import SimulatedServer
from cotenant.slurm import prolog, usage_watcher
from cotenant.slurm.node_job import node_job

ENV = {"SLURM_JOB_ID": "17", "SLURM_JOB_UID": str(os.getuid()), "SLURM_JOB_GPUS": "1"}


@pytest.mark.parametrize(
    ("comment", "wanted"),
    [("mps", True), ("cotenant:mem=4M,mps", True), ("a mps b", True), ("amps", False), ("mpsx", False), ("", False)],
)
def test_a_job_requests_mps_by_a_word_of_its_comment(tmp_path, comment, wanted):
    assert node_job({**ENV, "SLURM_JOB_COMMENT": comment}, tmp_path).wants_mps is wanted


@pytest.mark.parametrize("changed", [{"SLURM_JOB_ID": "../etc"}, {"SLURM_JOB_ID": ""}, {"SLURM_JOB_UID": "root"}])
def test_an_environment_that_names_no_job_is_refused(tmp_path, changed):
    with pytest.raises(UsageError, match="name no job"):
        node_job({**ENV, **changed}, tmp_path)


def test_mps_and_a_watcher_are_started_and_ended(tmp_path_factory, monkeypatch):
    tmp_path = tmp_path_factory.mktemp("p")  # a socket's path has 108 bytes
    (tmp_path / "bin").mkdir()
    notes = fake_mps.put(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    server = SimulatedServer.create(tmp_path / "gpus", "2xA100-40GB", time_scale=60)
    job = node_job(ENV, tmp_path / "jobs")
    assert prolog.begin(job, with_mps=True, with_record=True, simulate=tmp_path / "gpus") == (True, True)
    try:
        (variable, *_) = (job.folder / "environment").read_text().splitlines()
        assert variable.startswith(f"export CUDA_MPS_PIPE_DIRECTORY={job.folder}/mps/")
        assert notes.read_text().splitlines()[0] == f"start {server.uuids[1]} {os.getuid()}"
        pid, ticks = map(int, (job.folder / "watcher.pid").read_text().split())
        assert procfs.start_ticks(pid) == ticks
        assert os.getsid(pid) == pid  # slurmd kills the process group of Prolog
    finally:
        prolog.end(job)
    assert any(line.startswith("quit ") for line in notes.read_text().splitlines())
    assert not job.folder.exists()
    assert procfs.start_ticks(pid) != ticks


@pytest.mark.parametrize("env", [{"SLURM_JOB_GPUS": ""}, {"SLURM_JOB_NUM_NODES": "2"}])
def test_no_watcher_without_gpus_or_on_several_nodes(tmp_path, env):
    job = node_job({**ENV, **env}, tmp_path / "jobs")
    assert prolog.begin(job, with_mps=False, with_record=True, simulate=None) == (False, False)
    assert not (job.folder / "watcher.pid").exists()


def test_a_folder_that_others_can_write_is_refused_and_left_as_it_is(tmp_path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs").chmod(0o777)
    with pytest.raises(BackendError, match=r"can be written by others: found uid .*, mode 777"):
        prolog.begin(node_job(ENV, tmp_path / "jobs"), with_mps=True, with_record=True, simulate=None)
    assert list((tmp_path / "jobs").iterdir()) == []


def test_a_pid_that_was_given_again_is_not_killed(tmp_path):
    other = subprocess.Popen(["sleep", "1000"])
    try:
        job = node_job(ENV, tmp_path)
        job.folder.mkdir()
        (job.folder / "watcher.pid").write_text(f"{other.pid} 1\n")
        prolog.end(job)
        assert other.poll() is None
        assert not job.folder.exists()
    finally:
        other.kill()
        other.wait()


def test_a_process_is_of_the_job_that_it_was_started_in(tmp_path):
    words = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "SLURM_JOB_ID": "17"}
    ) as process:
        process.stdout.readline()
        queries = [(17, os.getuid()), (1, os.getuid()), (17, os.getuid() + 1)]
        assert [usage_watcher.is_of_job(process.pid, str(job), uid) for job, uid in queries] == [True, False, False]
        process.stdin.close()


class Usage(SimpleNamespace):
    """What was seen at each of its reads: peaks and energies."""

    def read(self):
        if self.peaks:
            self.peak_bytes, self.energy_j = self.peaks.pop(0)


def written(tmp_path, monkeypatch, peaks, flush_at=(), fails_until_s=0):
    """The records of a watcher by the second, while a job shows these peaks, one a second."""
    folder, clock, found = tmp_path / "17", [0.0], []
    (folder / "flush").mkdir(parents=True)
    monkeypatch.setattr(usage_watcher.time, "monotonic", lambda: clock[0])
    last_s = len(peaks)

    def sleep(seconds):
        clock[0] = round(clock[0] + seconds, 6)
        if clock[0] in flush_at:
            (folder / "flush" / "now").touch()
        if clock[0] > last_s:
            (folder / "flush" / "now").unlink(missing_ok=True)
            (folder / "flush").rmdir()
            folder.rmdir()

    def write(text):
        if clock[0] < fails_until_s:
            return False
        found.append((int(clock[0]), text.removeprefix("cotenant:")))
        return True

    usage = Usage(peaks=list(peaks), peak_bytes=None, energy_j=None)
    usage_watcher.watch(folder, usage, SimpleNamespace(write=write), sleep)
    return found


GIB = 2**30


def test_the_record_is_written_at_once_then_after_growth_or_a_minute(tmp_path, monkeypatch):
    peaks = [(None, None), *[(GIB, 5.0 * second) for second in range(70)]]
    assert written(tmp_path, monkeypatch, peaks) == [(1, "peak=1024M,energy=0J"), (61, "peak=1024M,energy=300J")]


def test_a_record_that_slurmctld_did_not_take_is_written_again(tmp_path, monkeypatch):
    """Without an energy meter the text did not change again, and the record stayed empty."""
    assert written(tmp_path, monkeypatch, [(GIB, None)] * 30, fails_until_s=5) == [(10, "peak=1024M")]


@pytest.mark.parametrize(
    ("shown", "updated", "expected"),
    [(None, "", False), ("site", None, True), ("", None, False), ("", "", True), ("cotenant:peak=0M", None, False)],
)
def test_a_write_says_whether_it_is_to_be_repeated(monkeypatch, shown, updated, expected):
    def run(program, *words):
        if program == "scontrol":
            return updated
        if words[-1] == "%A|%F|%K":
            return "17|17|N/A\n"
        return None if shown is None else shown + words[-1].partition(":")[2] + "\n"

    monkeypatch.setattr(usage_watcher, "_run", run)
    assert usage_watcher.AdminComment("17").write("cotenant:peak=1M") is expected


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        pytest.param("28|26|2\n26|26|3\n27|26|1\n", "26_3", id="the last task has the number of the array"),
        pytest.param("26|26|N/A\n", "26", id="no array"),
        pytest.param("", "26", id="forgotten"),
        pytest.param(None, None, id="no answer"),
    ],
)
def test_a_record_is_of_one_task_of_an_array(monkeypatch, listed, expected):
    """`scontrol update JobId=26` changed the record of all tasks."""
    called = []

    def run(*words):
        called.append(words)
        if words[-1].startswith("admin_comment:"):
            return words[-1].partition(":")[2]
        return listed if words[0] == "squeue" else ""

    monkeypatch.setattr(usage_watcher, "_run", run)
    assert usage_watcher.AdminComment("26").write("cotenant:peak=1M") is (expected is not None)
    update = [("scontrol", "update", f"JobId={expected}", "AdminComment=cotenant:peak=1M")]
    assert called[2:] == ([] if expected is None else update)
    assert [words[3] for words in called[1:2]] == ([] if expected is None else [expected])


def test_growth_is_written_every_ten_seconds(tmp_path, monkeypatch):
    peaks = [(GIB * (1 + second), None) for second in range(25)]
    assert written(tmp_path, monkeypatch, peaks) == [(0, "peak=1024M"), (10, "peak=11264M"), (20, "peak=21504M")]


def test_the_end_of_a_task_has_it_written(tmp_path, monkeypatch):
    peaks = [(GIB, float(second)) for second in range(8)]
    found = written(tmp_path, monkeypatch, peaks, flush_at=(5.5,))
    assert found == [(0, "peak=1024M,energy=0J"), (5, "peak=1024M,energy=6J")]


def test_the_verbs_say_what_they_started(tmp_path):
    command = [sys.executable, "-m", "cotenant", "slurm"]
    words = {"prolog": ["--no-record"], "epilog": []}
    env = {**os.environ, **ENV}
    printed = [
        subprocess.run(
            [*command, verb, *more, "--json", "--folder", str(tmp_path)], env=env, check=True, capture_output=True
        ).stdout
        for verb, more in words.items()
    ]
    started, ended = map(json.loads, printed)
    assert (started["job_id"], started["mps"], started["record"], ended["job_id"]) == ("17", False, False, "17")
