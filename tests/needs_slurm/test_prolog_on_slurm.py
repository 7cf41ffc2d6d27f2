"""Prolog, Epilog and those of tasks, as shipped, on a real Slurm: MPS and the record of a job."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

import fake_mps
from cotenant.demo.slurm_cluster import why_no_cluster
from cotenant.simserver.server import SimulatedServer
from people import made_users, needs_users, public_python, python_path
from slurm_clusters import SlurmCluster

pytestmark = needs_users

SHARE = Path(__file__).parents[2] / "share" / "slurm"
HOOKS = {"Prolog": "prolog", "Epilog": "epilog", "TaskProlog": "task_prolog", "TaskEpilog": "task_epilog"}
JOB = """\
echo "pipe $CUDA_MPS_PIPE_DIRECTORY"; ls -ld $CUDA_MPS_PIPE_DIRECTORY
echo "gpus $CUDA_VISIBLE_DEVICES"
srun --overlap --gres=gpu:1 sh -c 'echo "of a step: $CUDA_VISIBLE_DEVICES"'
PYTHONPATH={path} COTENANT_SIM_SERVER={gpus} CUDA_VISIBLE_DEVICES={uuid} {python} -m cotenant.simserver.fake_job \
    --delay 0.1 --duration 1e6 --peak-gib 3 &
until [ -e {end} ]; do sleep 0.05; done
kill $!; wait $!; true
"""
"""It holds 3 GiB until the file `end` is there."""


class HookedCluster(SlurmCluster):
    """One node whose slurmd runs the shipped scripts; `gpus` is its simulated server, `run` the folder of jobs."""

    def start(self):
        super().start()
        self.gpus, self.run, bin_folder = (self.folder / name for name in ("gpus", "run-jobs", "bin"))
        bin_folder.mkdir()
        self.mps_notes = fake_mps.put(bin_folder)
        self.mps_notes.touch()
        self.mps_notes.chmod(0o666)  # each user's control daemon writes it
        self.server = SimulatedServer.create(self.gpus, "2xA100-40GB", time_scale=60)
        python = Path(sys.executable).parent
        conf = [(self.folder / "slurm.conf").read_text()]
        for hook, name in HOOKS.items():
            text = (SHARE / f"{name}.sh").read_text()
            for found, put in (
                ("PATH=/opt/cotenant/bin", f"PATH={bin_folder}:{python}"),
                ("FOLDER=/run/cotenant-slurm", f"FOLDER={self.run}"),
                ("slurm prolog ", f"slurm prolog --simulate {self.gpus} "),
            ):
                text = text.replace(found, put)
            path = self.folder / f"{name}.sh"
            path.write_text(text)
            path.chmod(0o755)
            conf.append(f"{hook}={path}\n")
        (self.folder / "slurm.conf").write_text("".join(conf))
        self.slurm("scontrol", "reconfigure")

    def submit(self, account, *words):
        """The number of a job of a user that holds 3 GiB of the first GPU, and the file of its output."""
        job = JOB.format(
            gpus=self.gpus,
            uuid=self.server.uuids[0],
            python=public_python(),
            path=python_path(),
            end=self.folder / "end",
        )
        output = Path(account.pw_dir) / "out"
        user = (
            "env",
            "TMPDIR=/tmp",
            "setpriv",
            f"--reuid={account.pw_uid}",
            f"--regid={account.pw_gid}",
            "--init-groups",
        )
        line = ("sbatch", "--parsable", "-D", "/", "-o", str(output), "--gres=gpu:1", *words, "--wrap", job)
        return self.slurm(*user, *line).strip(), output

    def admin_comment(self, job_id):
        found = re.search(r"AdminComment=(\S+)", self.slurm("scontrol", "show", "job", job_id))
        return found and found[1]

    def recorded_j(self, job_id):
        """The energy in the record of a job; 0 in the first one, of one sample."""
        found = re.fullmatch(r"cotenant:peak=\d+M(?:,energy=(\d+)J)?", self.admin_comment(job_id))
        return int(found[1] or 0)

    def flush(self, job_id):
        """Have a sample taken and written, as the end of a task does."""
        requested = self.run / job_id / "flush" / "now"
        requested.touch()
        self.until(lambda: not requested.exists(), "its watcher has written")

    def is_clean(self, job_id):
        return not (self.run / job_id).exists()


@pytest.fixture
def hooked():
    reason = why_no_cluster()
    if reason is None and public_python() is None:
        reason = "every Python with our packages is in a folder that only root may enter"
    if reason is not None:
        pytest.skip(reason)
    cluster = HookedCluster(Path(tempfile.mkdtemp(prefix="cotenant-hooks-", dir="/tmp")), nodes=("n1",))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(cluster.folder, ignore_errors=True)


def test_a_job_has_mps_of_its_user_and_its_peak_and_energy_in_its_record(hooked):
    with made_users(1) as (ann,):
        job_id, output = hooked.submit(ann, "--comment=mps", "--gres=gpu:2")
        hooked.until(lambda: hooked.admin_comment(job_id), "it is recorded while it runs")
        early_j = hooked.recorded_j(job_id)
        seen_s = hooked.server.now_s()
        hooked.until(lambda: hooked.server.now_s() > seen_s + 300, "five seconds have passed, some samples")
        (hooked.folder / "end").touch()
        assert hooked.ended(job_id) == "COMPLETED", output.read_text()
        assert hooked.recorded_j(job_id) > early_j  # as of the end of the script
        pipe, listed, gpus, of_step = output.read_text().splitlines()[:4]
        home = pipe.removeprefix("pipe ")
        assert home.startswith(f"{hooked.run}/{job_id}/mps/"), (hooked.run / "log").read_text()
        assert listed.split()[:3] == ["drwx------", "2", ann.pw_name]
        uuids = hooked.server.uuids
        assert gpus == f"gpus {uuids[0]},{uuids[1]}"  # not numbers, which mean others to a client of MPS
        assert of_step.removeprefix("of a step: ") in uuids
        assert hooked.admin_comment(job_id).startswith("cotenant:peak=3072M,")
        hooked.until(lambda: hooked.is_clean(job_id), "Epilog has ended it")
        notes = hooked.mps_notes.read_text().splitlines()
        assert notes[0] == f"start {uuids[0]},{uuids[1]} {ann.pw_uid}"
        assert f"quit {Path(home).parent.name}" in notes
        assert not any(str(hooked.run).encode() in words for words in _command_lines())


def test_a_job_that_does_not_ask_has_no_mps_and_a_cancelled_one_leaves_nothing(hooked):
    with made_users(1) as (ann,):
        job_id, output = hooked.submit(ann, "--comment=amps")
        hooked.until(lambda: hooked.admin_comment(job_id), "it is recorded while it runs")
        assert output.read_text().splitlines()[0] == "pipe "
        hooked.slurm("scancel", job_id)
        assert hooked.ended(job_id) == "CANCELLED"
        hooked.until(lambda: hooked.is_clean(job_id), "Epilog has ended it")
        assert hooked.mps_notes.read_text() == ""
        hooked.until(lambda: not any(str(hooked.run).encode() in words for words in _command_lines()), "no watcher")


def test_a_comment_of_the_site_and_a_job_without_gpus_are_left_alone(hooked):
    with made_users(1) as (ann,):
        (hooked.folder / "work").chmod(0o777)
        job_id, _ = hooked.submit(ann, "--hold")
        hooked.slurm("scontrol", "update", f"JobId={job_id}", "AdminComment=ours")
        hooked.slurm("scontrol", "release", job_id)
        hooked.until(lambda: hooked.server.gpu(0).processes, "its memory can be seen")
        for _ in range(2):
            hooked.flush(job_id)
        (hooked.folder / "end").touch()
        assert hooked.ended(job_id) == "COMPLETED"
        assert hooked.admin_comment(job_id) == "ours"
        plain = hooked.slurm("sbatch", "--parsable", "--wrap", f"ls {hooked.run} >{hooked.folder}/work/list").strip()
        assert hooked.ended(plain) == "COMPLETED"
        assert plain not in (hooked.folder / "work" / "list").read_text().split()


def _command_lines():
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            continue
    return [words for words in found if b"usage_watcher" in words]
