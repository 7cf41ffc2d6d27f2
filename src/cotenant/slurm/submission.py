"""Submits a script to Slurm, with what was learned of it, and again after it ran out of GPU memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cotenant.core.errors import BackendError, UsageError
from cotenant.core.units import format_bytes
from cotenant.jobfiles.sbatch import Setting, header_words, split_options
from cotenant.scheduling.recovery import grown_bytes
from cotenant.slurm.gpu_request import SlurmGpuRequest, last_values, read_gpu_request
from cotenant.slurm.installation import SlurmInstallation, find_installation, message_of, without_allocation
from cotenant.slurm.job_records import JobRecords
from cotenant.slurm.plan import Addition, ShardSize, Submission, plan_submission, words_of
from cotenant.slurm.shards import GpuShards, shards_of
from cotenant.slurm.watched_script import watched_script

MAX_ATTEMPTS = 4
NOT_REPEATED = ("hold", "wait")
"""Options that would keep a job that is submitted again from running, or its submitter from ending."""
STDIN_NAME = "sbatch"
"""What sbatch calls a job whose script it reads from stdin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJob:
    """A script and its options.

    Attributes:
        words: the user's options for sbatch.
        name: of the script's file, which is the name of the job unless an option names it.
        text: the script.
        arguments: the script's.
    """

    words: tuple[str, ...]
    name: str
    text: str
    arguments: tuple[str, ...] = ()

    def settings(self) -> tuple[list[Setting], list[Setting]]:
        """The options of the header and of the command line.

        Raises:
            UsageError: sbatch would refuse them.
        """
        words, refused = header_words(self.text)
        if refused:
            raise UsageError(f"line {refused[0][0]} of the script: {refused[0][1]}")
        return split_options([word.text for word in words])[0], split_options(self.words)[0]

    def values(self) -> dict[str, str | None]:
        """The value that counts of each option."""
        header, line = self.settings()
        return last_values(header, line, os.environ)

    def gpu_request(self) -> SlurmGpuRequest:
        """The GPUs that it requests."""
        return read_gpu_request(self.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What is known of a job before it runs.

    Attributes:
        bound_bytes: memory that it needs on each GPU, or None.
        estimator: who says so; `declared` for the user.
        addition: what may be added to its options.
        size: the shards that it may use, or None.
        is_watched: whether its script runs under `slurm.supervise`.
        attempt: from 1; `resubmission_of`: the job of the attempt before, or None.
    """

    bound_bytes: int | None
    estimator: str
    addition: Addition
    size: ShardSize | None
    is_watched: bool = True
    attempt: int = 1
    resubmission_of: str | None = None


def plan(job: BatchJob, learned: Learned) -> Submission:
    """The options for sbatch.

    Raises:
        UsageError: sbatch would refuse the user's.
    """
    header, line = job.settings()
    values = last_values(header, line, os.environ)
    return plan_submission(
        line,
        read_gpu_request(values),
        learned.bound_bytes,
        learned.size,
        addition=learned.addition,
        has_comment="comment" in values,
        estimator=learned.estimator,
    )


def shard_size(
    slurm: SlurmInstallation, request: SlurmGpuRequest, partition: str | None, bytes_of: Callable[[GpuShards], int]
) -> ShardSize | None:
    """The shards that a job may use; None if its partition has none of its type.

    Without a type in the request, all shards must stand for the same memory: Slurm chooses the GPU.
    """
    found = shards_of(slurm, partition)
    fitting = [shards for shards in found if request.type in ("", shards.type)]
    sizes = {(bytes_of(shards), shards.per_gpu) for shards in fitting}
    if len(sizes) != 1:
        return None
    (size, per_gpu) = sizes.pop()
    kind = fitting[0].type if request.type else ""
    return ShardSize(shards=GpuShards(type=kind, per_gpu=per_gpu), bytes=size)


def submit(
    slurm: SlurmInstallation,
    job: BatchJob,
    learned: Learned,
    records: JobRecords,
    *,
    on_id: Callable[[str], None] = lambda _: None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> tuple[str, int]:
    """Submit `job`: its id, and sbatch's exit code; with `--wait` that of the job, when it has ended.

    `on_id` is called with the id at once. `env`, `cwd`: of sbatch, by default ours.

    Raises:
        BackendError: Slurm refuses it; the message is Slurm's. UsageError: the options cannot be read.
    """
    planned = plan(job, learned)
    text = job.text
    if learned.is_watched:
        text = watched_script(text, _description(job, learned, planned, records), python=sys.executable)
    with tempfile.TemporaryDirectory(prefix="cotenant-sbatch-") as folder:
        script = Path(folder) / (Path(job.name).name or STDIN_NAME)
        script.write_text(text, encoding="utf-8", errors="surrogateescape")
        words = (*planned.words, str(script), *job.arguments)

        def record(job_id: str) -> None:
            _record(records, job_id, learned, planned)
            on_id(job_id)

        return run_sbatch(slurm, words, on_id=record, env=env, cwd=cwd)


def run_sbatch(
    slurm: SlurmInstallation,
    words: Sequence[str],
    *,
    on_id: Callable[[str], None],
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> tuple[str, int]:
    """Run sbatch: the id of the job and the exit code; `on_id` gets the id at once, also with `--wait`.

    Raises:
        BackendError: Slurm refuses the job; the message is Slurm's.
    """
    command = [slurm.program("sbatch"), "--parsable", *words]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=cwd
    ) as process:
        if process.stdout is None or process.stderr is None:
            raise BackendError("sbatch has no output")
        # stderr is at most some lines, which fit into the pipe.
        job_id = process.stdout.readline().decode(errors="replace").strip().partition(";")[0]
        if job_id:
            on_id(job_id)
        messages = process.stderr.read()
        code = process.wait()
    if not job_id:
        raise BackendError(message_of(messages, "sbatch", code))
    sys.stderr.write(messages.decode(errors="replace"))
    return job_id, code


def _record(records: JobRecords, job_id: str, learned: Learned, planned: Submission) -> None:
    fields = _learned_fields(learned, planned)
    records.update(job_id, "submitted", {**fields, "resubmission_of": learned.resubmission_of})


def _learned_fields(learned: Learned, planned: Submission) -> dict[str, Any]:
    return {
        "promised_bytes": planned.promised_bytes,
        "shards": planned.shards,
        "estimator": learned.estimator,
        "attempt": learned.attempt,
    }


def _description(job: BatchJob, learned: Learned, planned: Submission, records: JobRecords) -> dict[str, Any]:
    """What `slurm.supervise` needs to know, and to submit the job again."""
    return {
        **_learned_fields(learned, planned),
        "records": str(records.folder.absolute()),
        "words": list(job.words),
        "name": job.name,
        "added": list(planned.added),
        "bound_bytes": learned.bound_bytes,
        "addition": learned.addition,
        "size": None if learned.size is None else asdict(learned.size),
    }


def resubmit(
    description: Mapping[str, Any],
    text: str,
    arguments: Sequence[str],
    *,
    peak_bytes: int,
    wanted_bytes: int | None,
) -> tuple[str | None, str]:
    """Submit a script that ran out of GPU memory again, with more: (id or None, a sentence).

    Called in the job. An array's task is submitted as an array of this one task.

    Raises:
        BackendError, UsageError: Slurm refuses it.
    """
    attempt = int(description["attempt"])
    if attempt >= MAX_ATTEMPTS:
        return None, f"not submitted again: this was attempt {attempt} of {MAX_ATTEMPTS}"
    promised = description["promised_bytes"]
    if not description["shards"] or promised is None:
        return None, "not submitted again: it had a whole GPU, and more is not known to exist"
    header, line = BatchJob(words=tuple(description["words"]), name="", text=text).settings()
    if any(setting.option.name in NOT_REPEATED for setting in header):
        return None, f"not submitted again: its header has {' or '.join(f'--{name}' for name in NOT_REPEATED)}"
    words = [word for setting in line if setting.option.name not in NOT_REPEATED for word in words_of(setting)]
    task = os.environ.get("SLURM_ARRAY_TASK_ID")
    if task is not None:
        words.append(f"--array={task}")
    size = description["size"]
    learned = Learned(
        bound_bytes=grown_bytes(promised, peak_bytes, wanted_bytes),
        estimator="oom",
        addition=description["addition"],
        size=ShardSize(shards=GpuShards(**size["shards"]), bytes=size["bytes"]),
        attempt=attempt + 1,
        resubmission_of=os.environ.get("SLURM_JOB_ID"),
    )
    job = BatchJob(words=tuple(words), name=description["name"], text=text, arguments=tuple(arguments))
    env = without_allocation(os.environ)
    records = JobRecords(Path(description["records"]))
    job_id, _ = submit(find_installation(env), job, learned, records, env=env, cwd=os.environ.get("SLURM_SUBMIT_DIR"))
    planned = plan(job, learned)
    what = f"{planned.shards} shards" if planned.shards else "a whole GPU"
    return job_id, f"{format_bytes(promised)} promised; submitted again as job {job_id} with {what}"
