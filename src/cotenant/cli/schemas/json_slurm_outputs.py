"""What `--json` prints of jobs on a real Slurm, of packs, and of manifests of Kubernetes."""

from __future__ import annotations

from typing import Literal, TypedDict


class ClusterJob(TypedDict):
    """A job that was submitted to Slurm, or with --dry-run would be.

    Attributes:
        id: Slurm's id of the job; null with --dry-run.
        line: the command line of sbatch, with what was added; the script's name stands for the watched one.
        bound_bytes, estimator: memory that it needs on each GPU, and who says so; null where not known.
        shards, promised_bytes: shards that are requested, 0 for none, and the memory that they stand for.
        watched: whether its script runs under a process that sees its GPU memory.
    """

    id: str | None
    line: str
    bound_bytes: int | None
    estimator: str | None
    shards: int
    promised_bytes: int | None
    watched: bool


class ClusterSubmitOutput(TypedDict):
    """`cotenant sbatch` to a real Slurm."""

    job: ClusterJob


class RecordedJob(TypedDict):
    """What is known of a job on Slurm beyond what Slurm says; its own fields stand beside these, as it prints them.

    Attributes:
        job_id, raw_id: its id, of an array `17_3`, and the number that Slurm counts it by.
        name, partition, user, state, exit_code, elapsed, allocated: as Slurm prints them.
        promised_bytes, seen_bytes: GPU memory that was requested for it, and the most it was seen to hold on one GPU.
        energy_j: its share of the energy of its GPUs.
        resubmitted_as, resubmission_of: the job that follows it after an OOM, and the one that it follows.
    """

    job_id: str
    raw_id: str
    name: str
    partition: str
    user: str
    state: str
    exit_code: str
    elapsed: str
    allocated: str
    promised_bytes: int | None
    seen_bytes: int | None
    energy_j: float | None
    resubmitted_as: str | None
    resubmission_of: str | None


class AccountedJobsOutput(TypedDict):
    """`cotenant sacct` on a real Slurm."""

    jobs: list[RecordedJob]


class QueuedClusterJob(RecordedJob):
    """The same, in squeue.

    Attributes:
        array_id, state_short, time, nodes, where: as Slurm prints them; `where`: its nodes, or why it waits.
    """

    array_id: str
    state_short: str
    time: str
    nodes: str
    where: str


class ClusterQueueOutput(TypedDict):
    """`cotenant squeue` on a real Slurm."""

    jobs: list[QueuedClusterJob]


class PackedJob(TypedDict):
    """A job of a pack that has ended.

    Attributes:
        key: what it is known by in the folder of the pack.
        line, index: its line in the list, and its index in an array or null.
        command: the line.
        state, exit_code, attempts, promised_bytes, seen_bytes, energy_j, running_s: as in `cotenant show`.
    """

    key: str
    line: int
    index: int | None
    command: str
    state: str
    exit_code: int | None
    attempts: int
    promised_bytes: int | None
    seen_bytes: int | None
    energy_j: float | None
    running_s: float | None


class PackOutput(TypedDict):
    """How a pack ended.

    Attributes:
        folder: with the progress and the output of the jobs.
        before: jobs that had ended before; completed, failed: in this run; left: that have not ended.
        reason: why it stopped before all had ended, or null.
        energy_j: of the jobs of this run; null where none was read.
    """

    folder: str
    before: int
    completed: int
    failed: int
    left: int
    reason: str | None
    energy_j: float | None
    jobs: list[PackedJob]


class PackSubmitOutput(TypedDict):
    """A pack that was submitted to Slurm, or with --dry-run would be: `id` is null."""

    id: str | None
    line: str
    folder: str


class SlurmConfigOutput(TypedDict):
    """`cotenant slurm config`: lines to add to the two files."""

    gres_conf: list[str]
    slurm_conf: list[str]


class SiteFinding(TypedDict):
    """What is wrong with a site's files."""

    severity: Literal["problem", "warning"]
    where: str
    text: str


class SlurmCheckOutput(TypedDict):
    """`cotenant slurm check`."""

    findings: list[SiteFinding]


class PrologOutput(TypedDict):
    """`cotenant slurm prolog`.

    Attributes:
        job_id: Slurm's id of the job.
        mps, record: whether MPS, and what writes its record, were started beside it.
    """

    job_id: str
    mps: bool
    record: bool


class EpilogOutput(TypedDict):
    """`cotenant slurm epilog`."""

    job_id: str


class ContainerMemory(TypedDict):
    """A container that requests GPUs, and what it needs on each; null where that is unknown."""

    name: str
    gpu_memory_mib: int | None


class ManifestOutput(TypedDict):
    """`cotenant k8s manifest`: the filled manifest."""

    manifest: str
    containers: list[ContainerMemory]


class WebhookOutput(TypedDict):
    """`cotenant k8s webhook`, once it serves."""

    url: str


SLURM_OUTPUTS = {
    "pack": PackOutput,
    "pack --to slurm": PackSubmitOutput,
    "sbatch --to slurm": ClusterSubmitOutput,
    "squeue --to slurm": ClusterQueueOutput,
    "sacct --to slurm": AccountedJobsOutput,
    "slurm config": SlurmConfigOutput,
    "slurm check": SlurmCheckOutput,
    "slurm prolog": PrologOutput,
    "slurm epilog": EpilogOutput,
    "k8s manifest": ManifestOutput,
    "k8s webhook": WebhookOutput,
}
