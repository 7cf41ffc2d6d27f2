"""`cotenant sbatch` to a real Slurm: estimate the script, show the estimate, submit it with what was learned."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from cotenant.cli.command_estimates import largest_estimate, shown
from cotenant.cli.estimate.options import DEFAULT_GPU
from cotenant.cli.output import emit_json, note, print_line
from cotenant.core.errors import UsageError
from cotenant.core.units import format_bytes, parse_bytes
from cotenant.jobfiles.python_commands import PythonCommand, find_python_commands
from cotenant.jobfiles.sbatch import Setting
from cotenant.slurm.installation import SlurmInstallation
from cotenant.slurm.job_records import JobRecords
from cotenant.slurm.plan import Addition, ShardSize, Submission
from cotenant.slurm.shards import GpuShards, memory_of_type
from cotenant.slurm.submission import BatchJob, Learned, plan, shard_size, submit

if TYPE_CHECKING:
    from cotenant.core.estimate import Estimate

GPU_VARIABLE, SHARD_VARIABLE = "COTENANT_SLURM_GPU", "COTENANT_SLURM_SHARD_SIZE"
ESTIMATE_TIMEOUT_S = 120.0
_ANSWERED_BY_SLURM = ("help", "usage", "version", "test-only")


def submit_to_slurm(
    slurm: SlurmInstallation,
    settings: Sequence[Setting],
    words: Sequence[str],
    own: Mapping[str, str | None],
    *,
    json: bool,
) -> int:
    """Submit a script with sbatch's options `settings`; `words` are the script and its arguments, `own` our options.

    Raises:
        UsageError: an option or the script cannot be read. BackendError: Slurm refuses the job.
    """
    addition = own.get("add") or "auto"
    if addition not in get_args(Addition):
        raise UsageError(f"`--add` must be one of {', '.join(get_args(Addition))}, got `{addition}`")
    if any(setting.option.name in _ANSWERED_BY_SLURM for setting in settings):
        program = slurm.program("sbatch")
        os.execv(program, [program, *(word for setting in settings for word in _words(setting)), *words])  # noqa: S606
    job = _batch_job(settings, words)
    bound_bytes, estimator = _memory(job, own)
    values = job.values()
    size = None
    if addition in ("auto", "shards"):
        size = _shards(slurm, job, values.get("partition"), own)
    learned = Learned(
        bound_bytes=bound_bytes,
        estimator=estimator,
        addition=addition,  # type: ignore[arg-type]
        size=size,
        is_watched="no-watch" not in own,
    )
    planned = plan(job, learned)
    for reason in planned.reasons:
        note(f"sbatch: {reason}")
    if "dry-run" in own:
        return _print_plan(job, learned, planned, json=json)
    records = JobRecords.of_cluster(slurm.cluster_name())
    is_quiet, is_parsable = "quiet" in values, "parsable" in values

    def announce(job_id: str) -> None:
        if json:
            emit_json({"job": {"id": job_id, "line": _line(job, planned), **_learned_json(learned, planned)}})
        elif is_parsable or not is_quiet:
            print_line(job_id if is_parsable else f"Submitted batch job {job_id}")
        sys.stdout.flush()

    return submit(slurm, job, learned, records, on_id=announce)[1]


def _words(setting: Setting) -> tuple[str, ...]:
    from cotenant.slurm.plan import words_of

    return words_of(setting)


def _batch_job(settings: Sequence[Setting], words: Sequence[str]) -> BatchJob:
    from cotenant.cli.slurm_verbs.sbatch import read_script

    wrapped = [setting.value for setting in settings if setting.option.name == "wrap"]
    options = tuple(word for setting in settings if setting.option.name != "wrap" for word in _words(setting))
    if wrapped:
        if words:
            raise UsageError("script arguments are not permitted with --wrap")
        # The text is sbatch's own (src/sbatch/opt.c of 22.05, `_wrap_command` of sbatch.c).
        text = f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{wrapped[-1]}\n"
        return BatchJob(words=options, name="wrap", text=text)
    name, _, text = read_script(words)
    return BatchJob(words=options, name=name, text=text, arguments=tuple(words[1:]))


def _memory(job: BatchJob, own: Mapping[str, str | None]) -> tuple[int | None, str]:
    """GPU memory that a job needs on each GPU, declared or estimated, and who says so; None if it is not known."""
    declared = own.get("gpu-mem")
    if declared is not None:
        return parse_bytes(declared), "declared"
    if "no-estimate" in own:
        return None, ""
    found = find_python_commands(job.text, {**os.environ, **_batch_variables()}, job.arguments)
    if not found:
        note("sbatch: no estimate: the script has no Python command that could be found; --gpu-mem declares its memory")
        return None, ""
    largest = largest_estimate("sbatch", job.text, found, lambda command: _estimate(command, job, own))
    return (None, "") if largest is None else (largest.bound_bytes, largest.estimator)


def _batch_variables() -> dict[str, str]:
    """Variables that a script has in the job and that its commands may be made of."""
    return {
        "SLURM_SUBMIT_DIR": str(Path().absolute()),
        "SLURM_JOB_ID": "1",
        "SLURM_ARRAY_TASK_ID": "1",
        "SLURM_NTASKS": "1",
        "SLURM_NNODES": "1",
        "SLURM_CPUS_PER_TASK": "1",
        "SLURM_GPUS_ON_NODE": "1",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
    }


def _estimate(command: PythonCommand, job: BatchJob, own: Mapping[str, str | None]) -> Estimate:
    """The estimate of one command, which is printed.

    Raises:
        CotenantError: there is none.
    """
    from cotenant.core.ports import EstimateRequest
    from cotenant.estimators import create
    from cotenant.estimators.trace_cache import TraceCache, default_folder
    from cotenant.estimators.traced import TracedEstimator

    if command.unknown:
        note(f"sbatch: warning: {shown(command)}: {', '.join(command.unknown)} not known here, taken as empty")
    start = Path(job.values().get("chdir") or "").absolute()
    workdir = start / Path(command.folder).expanduser()
    env = {**os.environ, **_batch_variables(), **command.env}
    folders = [str(start / Path(folder).expanduser()) for folder in command.bin_folders]
    if command.conda_env:
        folders = [*_conda_folders(command.conda_env, env), *folders]
    env["PATH"] = os.pathsep.join([*folders, env.get("PATH", os.defpath)])
    request = EstimateRequest(
        command=command.words,
        workdir=str(workdir),
        env=env,
        gpu=_gpu_name(own),
        timeout_s=ESTIMATE_TIMEOUT_S,
        gpus=max(1, job.gpu_request().gpus or 1),
    )
    folder = default_folder()
    estimator = create(
        own.get("estimator") or "traced",
        lambda: TracedEstimator(cache=None if folder is None else TraceCache(folder)),
    )
    estimate = estimator.estimate(request)
    partial = ", a lower bound" if estimate.partial else ""
    note(
        f"sbatch: {shown(command)} needs {format_bytes(estimate.bound_bytes)} on {estimate.gpu}"
        f" ({format_bytes(estimate.device_bytes)} and a margin, by {estimate.estimator}{partial})"
    )
    return estimate


def _conda_folders(name: str, env: Mapping[str, str]) -> list[str]:
    """The folder of programs of a conda environment, wherever conda keeps those of its name."""
    if "/" in name:
        return [str(Path(name).expanduser() / "bin")]
    executable = env.get("CONDA_EXE")
    roots = [Path(executable).parent.parent] if executable else []
    roots += [Path(folder).expanduser() for folder in ("~/miniconda3", "~/anaconda3", "~/miniforge3", "~/.conda")]
    folders = [root / "bin" if name == "base" else root / "envs" / name / "bin" for root in roots]
    return [str(folder) for folder in folders if folder.is_dir()][:1]


def _gpu_name(own: Mapping[str, str | None]) -> str:
    return own.get("gpu") or os.environ.get(GPU_VARIABLE) or DEFAULT_GPU


def _shards(
    slurm: SlurmInstallation, job: BatchJob, partition: str | None, own: Mapping[str, str | None]
) -> ShardSize | None:
    text = own.get("shard-size") or os.environ.get(SHARD_VARIABLE)
    named = None if text is None else parse_bytes(text)

    def bytes_of(shards: GpuShards) -> int:
        if named is not None:
            return named
        memory = shards.gpu_memory_bytes or memory_of_type(_gpu_name(own))
        if memory is None:
            raise UsageError(f"no GPU `{_gpu_name(own)}` is known", hint="`cotenant estimate --gpu list` prints all")
        return memory // shards.per_gpu

    return shard_size(slurm, job.gpu_request(), partition, bytes_of)


def _line(job: BatchJob, planned: Submission) -> str:
    script = ["--wrap", job.text.split("\n\n", 1)[1].rstrip("\n")] if job.name == "wrap" else [job.name]
    return shlex.join(["sbatch", *planned.words, *script, *job.arguments])


def _learned_json(learned: Learned, planned: Submission) -> dict[str, Any]:
    return {
        "bound_bytes": learned.bound_bytes,
        "estimator": learned.estimator or None,
        "shards": planned.shards,
        "promised_bytes": planned.promised_bytes,
        "watched": learned.is_watched,
    }


def _print_plan(job: BatchJob, learned: Learned, planned: Submission, *, json: bool) -> int:
    line = _line(job, planned)
    if json:
        emit_json({"job": {"id": None, "line": line, **_learned_json(learned, planned)}})
    else:
        print_line(line)
    return 0
