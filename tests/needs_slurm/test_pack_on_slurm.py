"""Packs in allocations of a real Slurm: on their GPUs only, until the time is over, with nothing left behind."""

from __future__ import annotations

import json
import os
from pathlib import Path

PACK = ("--simulate", "2xA100-40GB", "--policy-options", "warmup_s=0")


def job(text, memory="2G"):
    return f"--gpu-mem {memory} --wrap '{text}'"


def listed(cluster, *lines, name="jobs.txt"):
    (cluster.work / name).write_text("\n".join(lines) + "\n")
    return name


def submitted(cluster, *words):
    done = cluster.cli("pack", *PACK, "--json", *words, cwd=cluster.work)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return json.loads(done.stdout)["id"]


def log(cluster, folder, job_id):
    path = cluster.work / folder / f"slurm-{job_id}.out"
    return path.read_text() if path.exists() else ""


def done_lines(cluster, folder):
    texts = [path.read_text() for path in (cluster.work / folder).glob("done-*.jsonl")]
    return [json.loads(line) for text in texts for line in text.splitlines() if line]


def left_of_packs(cluster):
    """Processes of the packs of this cluster, by their environment."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                environment = (path / "environ").read_bytes()
                if b"COTENANT_PACK=" in environment and os.fsencode(cluster.folder) in environment:
                    found.append(path.name)
            except OSError:
                continue
    return found


def test_many_jobs_share_one_gpu_of_slurm(cluster):
    # All three meet: they hold the GPU at the same time.
    meet = "touch $0-$COTENANT_ARRAY_TASK_ID; until [ -e $0-1 -a -e $0-2 -a -e $0-3 ]; do sleep 0.05; done"
    dry = cluster.cli("pack", "--dry-run", "-p", "gpu", listed(cluster, f"-a 1-3 {job(meet)}"), cwd=cluster.work)
    folder = cluster.work / "jobs.pack"
    begin = f"sbatch --gres=gpu:1 --job-name=jobs --output={folder}/slurm-%j.out --requeue --open-mode=append"
    assert dry.stdout.startswith(f"{begin} --partition=gpu '--wrap="), dry.stderr
    assert not folder.exists()
    first = submitted(cluster, "-w", "n1", "jobs.txt")
    assert cluster.ended(first) == "COMPLETED", log(cluster, "jobs.pack", first)
    assert "3 completed, 0 failed" in log(cluster, "jobs.pack", first)
    cluster.until(lambda: left_of_packs(cluster) == [], "all processes have ended")


def test_two_packs_on_a_node_have_a_gpu_each(cluster):
    meet = "touch up-$SLURM_JOB_ID; until [ $(ls up-* | wc -l) = 2 ]; do sleep 0.05; done; echo $SLURM_JOB_ID"
    one, two = (submitted(cluster, "-w", "n1", listed(cluster, job(meet), name=f"{name}.txt")) for name in "ab")
    assert (cluster.ended(one), cluster.ended(two)) == ("COMPLETED", "COMPLETED")
    said = [log(cluster, "a.pack", one), log(cluster, "b.pack", two)]
    assert sorted(text.partition("share GPU ")[2][:1] for text in said) == ["0", "1"], said
    assert (cluster.work / "a.pack" / "1.out").read_text() == f"{one}\n"  # the job of Slurm, not ours


def test_before_the_time_limit_jobs_save_and_the_rest_is_requeued(cluster):
    save = "trap 'touch state; exit 0' TERM; touch up; while :; do sleep 0.05; done"
    (cluster.work / "train.sh").write_text(f"[ -e state ] && echo goes on && exit 0\n{save}\n")
    listed(cluster, job("touch short"), "--gpu-mem 39G train.sh", "--gpu-mem 39G --wrap 'touch last'")
    job_id = submitted(cluster, "-t", "1", "--margin", "0:45", "jobs.txt")  # 15 s each time

    hastened = set()

    def is_done():
        detail = cluster.slurm("scontrol", "show", "job", job_id)
        restarts = detail.partition("Restarts=")[2].split()[0]
        # Slurm waits two minutes. Not at once: slurmd refuses a credential of the second in which it revoked the last.
        if "Reason=BeginTime" in detail and restarts not in hastened:
            cluster.slurm("scontrol", "update", f"JobId={job_id}", "StartTime=now+2")
            hastened.add(restarts)
        return not cluster.slurm("squeue", "-h", "-j", job_id).strip()  # it lists what waits, runs, or completes

    cluster.until(is_done, "all allocations have ended")
    said = log(cluster, "jobs.pack", job_id)
    assert cluster.state(job_id) == "COMPLETED", (said, cluster.logs())
    assert f"pack: job {job_id} is requeued for " in said
    assert sorted(entry["line"] for entry in done_lines(cluster, "jobs.pack")) == [1, 2, 3]
    assert all((cluster.work / name).exists() for name in ("short", "state", "last"))
    assert (cluster.work / "jobs.pack" / "2.out").read_text().endswith("goes on\n")


def test_a_margin_that_is_longer_than_the_limit_requeues_nothing(cluster):
    job_id = submitted(cluster, "-t", "1", "--margin", "1:00", listed(cluster, job("true")))
    assert cluster.ended(job_id) == "FAILED"
    assert "error: the time limit leaves" in log(cluster, "jobs.pack", job_id)


def test_nothing_outlives_a_cancelled_allocation(cluster):
    listed(cluster, job("touch up; setsid sleep 1000 & sleep 1000"), job("true", "39G"))
    job_id = submitted(cluster, "jobs.txt")
    cluster.until((cluster.work / "up").exists, "its job runs")
    assert left_of_packs(cluster) != []
    cluster.slurm("scancel", job_id)
    assert cluster.ended(job_id) == "CANCELLED"
    cluster.until(lambda: left_of_packs(cluster) == [], "all processes have ended")
    assert done_lines(cluster, "jobs.pack") == []


def test_tasks_of_srun_share_a_list(cluster):
    listed(cluster, *(job(f"echo $SLURMD_NODENAME >>ran-{i}") for i in range(4)))
    command = [cluster.env["PATH"].partition(":")[0] + "/python", "-m", "cotenant", "pack", *PACK, "jobs.txt"]
    cluster.slurm("srun", "-N2", "-n2", "--gres=gpu:1", f"--chdir={cluster.work}", *command)
    assert [(cluster.work / f"ran-{i}").read_text() for i in range(4)] == ["n1\n", "n2\n", "n1\n", "n2\n"]


def test_an_allocation_without_a_gpu_is_refused(cluster):
    listed(cluster, job("true"))
    command = [cluster.env["PATH"].partition(":")[0] + "/python", "-m", "cotenant", "pack", *PACK, "jobs.txt"]
    cluster.slurm(
        "sbatch",
        "-W",
        "-o",
        str(cluster.work / "out"),
        f"--chdir={cluster.work}",
        "--wrap",
        f"{' '.join(command)} || true",
    )
    assert (cluster.work / "out").read_text().startswith("error: this allocation has no GPU")
