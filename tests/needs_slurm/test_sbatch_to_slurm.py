"""Scripts that go to a real Slurm: what is submitted, what runs, and what follows after an OOM."""

from __future__ import annotations

import json
import os
import shlex
import sys

import pytest

from cotenant.core.units import GiB
from cotenant.simserver.backend import SimulatedServer
from slurm_clusters import TIMEOUT_S

ECHO = '#!/bin/bash\n#SBATCH --gres=gpu:1 -J demo\necho "gpu=$CUDA_VISIBLE_DEVICES args=$*"\n'
# A process that needs 8 shards: with fewer it ends as torch does when memory runs out.
HUNGRY = """#!/bin/bash
#SBATCH --gres=gpu:1
shards=$(scontrol show job $SLURM_JOB_ID | sed -n 's/.*TresPerNode=gres:shard:\\([0-9]*\\).*/\\1/p')
echo "shards=$shards task=$SLURM_ARRAY_TASK_ID args=$* in=$(pwd)"
if [ -n "$shards" ] && [ "$shards" -lt 8 ]; then
    cat >&2 <<'EOT'
Traceback (most recent call last):
  File "train.py", line 1, in <module>
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 40.00 GiB of \
which 1.00 GiB is free. Including non-PyTorch memory, this process has 4.00 GiB memory in use.
EOT
    exit 1
fi
"""


def write(cluster, text, name="job.sh"):
    (cluster.work / name).write_text(text)
    return name


def submitted(cluster, *words, **options):
    done = cluster.cli("sbatch", "--parsable", *words, cwd=cluster.work, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def output(cluster, job_id):
    path = cluster.work / f"slurm-{job_id}.out"
    return path.read_text() if path.exists() else ""


def folders_on_node(cluster):
    return {path.name for path in (cluster.folder / "tmp").glob("cotenant-*")}


def detail(cluster, job_id, field):
    words = cluster.slurm("scontrol", "show", "job", str(job_id)).split()
    return next((word.partition("=")[2] for word in words if word.startswith(f"{field}=")), None)


def test_shards_take_the_place_of_a_gpu(cluster):
    write(cluster, ECHO)
    before = folders_on_node(cluster)
    dry = cluster.cli("sbatch", "--gpu-mem", "9G", "--dry-run", "job.sh", "a b", cwd=cluster.work)
    line = "sbatch --gres=shard:9 --comment=cotenant:mem=9216M,by=declared job.sh 'a b'\n"
    assert (dry.stdout, dry.stderr) == (
        line,
        "sbatch: 9 of the 40 shards of a GPU, 1.0 GiB each, in place of a whole one\n",
    )
    assert cluster.slurm("squeue", "-h") == ""
    done = cluster.cli("sbatch", "--gpu-mem", "9G", "job.sh", "a b", cwd=cluster.work)
    assert done.stdout.startswith("Submitted batch job "), done.stderr
    job_id = done.stdout.split()[-1]
    assert cluster.ended(job_id) == "COMPLETED"
    assert detail(cluster, job_id, "JobName") == "demo"
    assert detail(cluster, job_id, "TresPerNode") == "gres:shard:9"
    assert detail(cluster, job_id, "Comment") == "cotenant:mem=9216M,by=declared"
    assert output(cluster, job_id) in ("gpu=0 args=a b\n", "gpu=1 args=a b\n")
    assert folders_on_node(cluster) <= before  # that of the job is gone; a pack that was killed leaves its own


@pytest.mark.parametrize("header", ["-G 1", "--gpus-per-node=1"])
def test_shards_replace_every_way_to_request_a_gpu(cluster, header):
    write(cluster, f"#!/bin/sh\n#SBATCH {header}\necho gpu=$CUDA_VISIBLE_DEVICES\n")
    job_id = submitted(cluster, "--gpu-mem", "9G", "job.sh")
    assert cluster.ended(job_id) == "COMPLETED"
    assert "gres:shard:9" in detail(cluster, job_id, "TresPerNode").split(",")
    assert output(cluster, job_id) in ("gpu=0\n", "gpu=1\n")


def test_the_exit_code_the_signal_and_wrap_are_those_of_the_script(cluster):
    done = cluster.cli("sbatch", "-W", "--gpu-mem", "1G", "--wrap", "exit 3", cwd=cluster.work)
    assert done.returncode == 3, done.stderr
    job_id = done.stdout.split()[-1]
    assert (detail(cluster, job_id, "ExitCode"), detail(cluster, job_id, "JobName")) == ("3:0", "wrap")
    write(cluster, "#!/bin/bash\ntrap 'echo got USR1; exit 5' USR1\necho ready\nwhile :; do sleep 0.1; done\n")
    job_id = submitted(cluster, "--gpu-mem", "1G", "job.sh")
    cluster.until(lambda: "ready" in output(cluster, job_id), "it runs")
    cluster.slurm("scancel", "--batch", "--signal=USR1", job_id)
    assert cluster.ended(job_id) == "FAILED"
    assert (detail(cluster, job_id, "ExitCode"), output(cluster, job_id)) == ("5:0", "ready\ngot USR1\n")
    killed = submitted(cluster, "--gpu-mem", "1G", "--wrap", "kill -9 $$")
    assert cluster.ended(killed) == "FAILED"
    assert detail(cluster, killed, "ExitCode") == "0:9"


TRAIN = """import sys
import torch
model = torch.nn.Linear(int(sys.argv[1]), 4096).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, int(sys.argv[1]), device="cuda")).sum().backward()
    optimizer.step()
"""


def test_the_python_command_in_the_script_is_estimated(cluster):
    pytest.importorskip("torch")
    (cluster.work / "exp").mkdir()
    (cluster.work / "exp" / "train.py").write_text(TRAIN)
    write(
        cluster,
        "#!/bin/bash\n#SBATCH --gres=gpu:1\ncd $SLURM_SUBMIT_DIR/exp\nWIDTH=$1\n"
        "echo starting\nsrun --ntasks=1 python -u train.py $WIDTH --name $RUN_NAME\n",
    )
    done = cluster.cli("sbatch", "--dry-run", "--json", "job.sh", "65536", cwd=cluster.work, timeout=240)
    assert done.returncode == 0, done.stderr
    job = json.loads(done.stdout)["job"]
    # 4 GiB of parameters, gradients and two moments; temporaries of a step of Adam, the context and a margin.
    assert job["estimator"] == "traced"
    assert 5 * GiB < job["bound_bytes"] < 8 * GiB
    shards = -(-job["bound_bytes"] // GiB)
    assert (job["shards"], job["promised_bytes"]) == (shards, shards * GiB)
    said = done.stderr.splitlines()
    shown = "`python -u train.py 65536 --name` (line 6)"
    assert said[0] == f"sbatch: warning: {shown}: $RUN_NAME not known here, taken as empty"
    assert said[1].startswith(f"sbatch: {shown} needs ")
    assert said[2] == f"sbatch: {shards} of the 40 shards of a GPU, 1.0 GiB each, in place of a whole one"


def test_slurms_refusals_are_ours(cluster):
    done = cluster.cli("sbatch", "--gpu-mem", "1G", "-p", "nosuch", "--wrap", "true", cwd=cluster.work)
    assert done.returncode == 1
    assert "invalid partition" in done.stderr.lower()


def test_an_oom_submits_a_new_job_with_more(cluster):
    write(cluster, HUNGRY)
    first = submitted(cluster, "--gpu-mem", "5G", "-J", "hungry", "job.sh", "x y")
    assert cluster.ended(first) == "FAILED"
    said = output(cluster, first).splitlines()
    assert said[0] == f"shards=5 task= args=x y in={cluster.work}"
    second = str(int(first) + 1)
    assert said[-1] == (f"cotenant: out of GPU memory: 5.0 GiB promised; submitted again as job {second} with 7 shards")
    assert cluster.ended(second) == "FAILED"  # 4 + 2 GiB wanted, and 10 %, are 7 shards: still too few
    third = str(int(second) + 1)
    assert cluster.ended(third) == "COMPLETED"
    assert output(cluster, third).startswith("shards=9 task= args=x y ")
    assert detail(cluster, third, "JobName") == "hungry"
    rows = json.loads(cluster.cli("sacct", "--json").stdout)["jobs"]
    chain = {row["job_id"]: (row["state"], row["resubmitted_as"], row["promised_bytes"]) for row in rows}
    assert chain[first] == ("OUT_OF_MEMORY", second, 5 * GiB)
    assert chain[second] == ("OUT_OF_MEMORY", third, 7 * GiB)
    assert chain[third] == ("COMPLETED", None, 9 * GiB)


def test_one_task_of_an_array_is_submitted_again(cluster):
    write(cluster, HUNGRY)
    array = submitted(cluster, "--gpu-mem", "7G", "-a", "4", "job.sh")
    cluster.until(
        lambda: cluster.slurm("squeue", "-h", "-t", "all", "-n", "job.sh", "-o", "%i").count("_4") >= 2, "again"
    )
    cluster.until((cluster.work / f"slurm-{int(array) + 1}_4.out").exists, "it has run")
    cluster.until(lambda: not cluster.slurm("squeue", "-h").strip(), "all have ended")
    assert "shards=9 task=4" in (cluster.work / f"slurm-{int(array) + 1}_4.out").read_text()


def test_what_a_job_held_and_used_is_seen_in_squeue_and_sacct(cluster):
    folder = cluster.work / "gpus"
    SimulatedServer.create(folder, "2xA100-40GB", time_scale=1.0)
    gate = cluster.work / "gate"
    os.mkfifo(gate)
    job = (sys.executable, "-m", "cotenant.simserver.fake_job", "--peak-gib", "3", "--delay", "0.1")
    write(cluster, f"#!/bin/sh\n{shlex.join((*job, '--duration', '1000'))} &\ncat {gate}\nkill $!\nwait $!\ntrue\n")
    env = {"COTENANT_SIM_SERVER": str(folder)}
    job_id = submitted(cluster, "--gpu-mem", "4G", "-G", "1", "-w", "n1", "job.sh", env=env)

    def row():
        found = json.loads(cluster.cli("squeue", "--json", "-j", job_id).stdout)["jobs"]
        return found[0] if found else {}

    cluster.until(lambda: (row().get("seen_bytes") or 0) > 0, "its memory is seen")
    assert (row()["promised_bytes"], row()["state"]) == (4 * GiB, "RUNNING")
    lines = cluster.cli("squeue", "-j", job_id).stdout.splitlines()
    assert " ".join(lines[0].split()) == "JOBID PARTITION NAME USER ST TIME NODES PROMISED SEEN ENERGY NODELIST(REASON)"
    assert lines[1].split()[:5] == [job_id, "gpu", "job.sh", "root", "R"]
    with gate.open("w"):  # the job reads to the end of it
        pass
    assert cluster.ended(job_id) == "COMPLETED"
    ended = {row["job_id"]: row for row in json.loads(cluster.cli("sacct", "--json").stdout)["jobs"]}[job_id]
    assert 0 < ended["seen_bytes"] <= 3 * GiB
    assert ended["energy_j"] > 0


def test_other_formats_and_verbs_are_slurms_own(cluster):
    job_id = submitted(cluster, "-H", "--gpu-mem", "1G", "--wrap", "true")
    assert cluster.cli("squeue", "-h", "-o", "%i %t").stdout == f"{job_id} PD\n"
    assert cluster.cli("sinfo", "-h", "-o", "%D %G").stdout == "2 gpu:2,shard:80\n"
    assert cluster.cli("scancel", job_id).returncode == 0
    assert cluster.ended(job_id) == "CANCELLED"


def test_without_a_choice_slurm_is_found_and_named(cluster):
    env = {"COTENANT_TO": ""}
    done = cluster.cli("sbatch", "--gpu-mem", "1G", "--dry-run", "--wrap", "true", cwd=cluster.work, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0].startswith("to slurm-wlm "), done.stderr
    (cluster.work / "bin").mkdir()
    link = cluster.work / "bin" / "sbatch"
    link.write_text('#!/bin/sh\nexec cotenant sbatch "$@"\n')
    link.chmod(0o755)
    through = {"PATH": f"{link.parent}:{cluster.env['PATH']}"}
    job_id = submitted(cluster, "-H", "--gpu-mem", "1G", "--wrap", "true", env=through)  # it does not call itself
    assert cluster.state(job_id) == "PENDING"
    absent = cluster.cli("sbatch", "--to", "slurm", "--wrap", "true", env={"COTENANT_SLURM_BIN": str(cluster.work)})
    assert (absent.returncode, absent.stderr.splitlines()[0]) == (
        2,
        "error: no Slurm here: there is no `sbatch` on the PATH",
    )
    assert absent.returncode != TIMEOUT_S
