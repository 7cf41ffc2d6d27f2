"""What `--json` prints, verb by verb: an object with `schema`, a version number, beside these fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from cotenant.cli.jobs.checkpoint_advice import CheckpointHabitView
from cotenant.cli.schemas.json_admin_outputs import ADMIN_OUTPUTS
from cotenant.cli.schemas.json_slurm_outputs import SLURM_OUTPUTS
from cotenant.cli.schemas.json_slurm_shapes import SlurmAccountingOutput, SlurmQueueOutput
from cotenant.cli.schemas.json_study_outputs import STUDY_OUTPUTS
from cotenant.daemon.api.schemas import answers, gpu_schemas, json_objects


class ErrorOutput(TypedDict):
    """What any verb prints if it fails."""

    error: answers.ErrorView


class CallOutcome(TypedDict):
    """Jobs that a verb acted on, oldest first, and an error for every job where it failed."""

    jobs: list[json_objects.JobView]
    errors: list[FailedCall]


class UpdateOutcome(TypedDict):
    """Jobs with their changed requests, oldest first, and an error for every job where that failed."""

    jobs: list[json_objects.JobDetail]
    errors: list[FailedCall]


class FailedCall(TypedDict):
    """A job that a verb could not act on."""

    kind: str
    message: str
    hint: str | None


class JobOutput(TypedDict):
    """One job."""

    job: json_objects.JobDetail


class ShowOutput(JobOutput):
    """One job, and what its script saves; null if that is not known."""

    checkpoints: CheckpointHabitView | None


class SubmitOutput(TypedDict):
    """The submitted job, or with --dry-run its preview; of an array, `job` is its first task and `jobs` are all."""

    job: json_objects.JobView | json_objects.StartPreview | json_objects.WaitPreview


class SubmitHabitOutput(SubmitOutput):
    """As `SubmitOutput`, and what the script of the job saves; null if that is not known."""

    checkpoints: CheckpointHabitView | None


class JobsOutput(TypedDict):
    """Jobs, oldest first, and how many there are of each state."""

    jobs: list[json_objects.JobView]
    counts: dict[str, int]


class NodeView(TypedDict):
    """The daemon's machine, as the one node of a cluster."""

    name: str
    state: Annotated[list[str], "long and short: `mixed`, `mix`"]
    cpus: int
    memory_mib: int
    gpus: int


class NodesOutput(TypedDict):
    """The nodes."""

    nodes: list[NodeView]


class EventsOutput(TypedDict):
    """Transitions of a job, oldest first."""

    id: int
    events: list[json_objects.JobEvent]


class LogsOutput(TypedDict):
    """The output of a job."""

    id: int
    stream: Annotated[str, "`stdout` or `stderr`"]
    text: str


class WaitOutput(TypedDict):
    """The jobs as they ended."""

    jobs: list[json_objects.JobDetail]


class FinishedJob(json_objects.JobView):
    """A finished job."""

    memory_efficiency: Annotated[float | None, "peak memory divided by the promised memory"]


class HistoryOutput(TypedDict, total=False):
    """Finished jobs; with --by, `user` or `workload` in place of `jobs`."""

    jobs: list[FinishedJob]
    user: list[json_objects.UserUsage]
    workload: list[json_objects.WorkloadUsage]


class GpusOutput(TypedDict):
    """The GPUs; with --history, their samples over time."""

    gpus: list[gpu_schemas.GpuStatus] | list[gpu_schemas.GpuHistory]


class TopOutput(TypedDict):
    """One snapshot of the server."""

    status: answers.StatusAnswer
    gpus: list[gpu_schemas.GpuStatus]
    jobs: list[json_objects.JobView]


class WebOutput(TypedDict):
    """Where the web page is."""

    url: Annotated[str, "opens the page once, in one browser"]


class CompletionOutput(TypedDict):
    """The script, and where it was installed."""

    shell: str
    script: str
    path: str | None


class EstimateFields(TypedDict):
    """An estimate: the fields of `Estimate`, and its sums."""

    peak_allocated_bytes: int | None
    peak_reserved_bytes: int
    context_bytes: int
    margin_bytes: int
    device_bytes: Annotated[int, "reserved + context"]
    bound_bytes: Annotated[int, "device + margin: what must be free"]
    coverage: float
    estimator: str
    version: str
    gpu: str
    breakdown_bytes: dict[str, int]
    warnings: list[str]
    partial: bool
    per_gpu: list[dict[str, Any]]
    processes: int
    smact: float | None
    smact_low: float | None
    smact_high: float | None
    smocc: float | None
    elapsed_s: float
    trace: Annotated[dict[str, Any] | None, "null unless a script was traced"]


class EstimateOutput(EstimateFields, total=False):
    """`cotenant estimate`. The optional fields are those of a traced estimate and of its reports."""

    interval: Annotated[
        dict[str, Any], "range of the reserved bytes if allocations differ: `low_bytes`, `high_bytes`, `states`"
    ]
    fit: Annotated[dict[str, Any], "the verdict for the GPU: `verdict` is `fits`, `tight`, `unsure` or `no`"]
    context: Annotated[dict[str, Any], "CUDA's context: a range of bytes, `loads_eagerly`, `derived`, `source`"]
    nccl: Annotated[dict[str, Any] | None, "NCCL's part of the context: a range of bytes, channels, `parts`"]
    parts_at_peak: Annotated[dict[str, int], "requested bytes at the peak by category and module, for --baseline"]
    changes: Annotated[dict[str, int], "--baseline: bytes by part, more or less than in the earlier estimate"]
    failed_checks: Annotated[list[str], "--budget, --strict: what they found; the exit code is 6 if there is any"]
    fits_on: Annotated[list[dict[str, Any]], "--fits-on: one verdict for each known GPU and MIG instance"]
    what_if: Annotated[list[dict[str, Any]], "--what-if: one row for each setting"]
    utilization: Annotated[dict[str, Any] | None, "--utilization: `smact`, `smocc`, `gpu`, `warnings`"]
    summary: Annotated[dict[str, Any], "of a model's summary: `format`, `layers`, `parameters`, `batch_size`, `tokens`"]
    learned: Annotated[list[dict[str, Any]], "of a model's summary: the answer of each learned estimator"]
    batch_size: Annotated[dict[str, Any], "--find-batch-size: `largest`, `smallest_misfit`, `trials`"]


class EstimatorRow(TypedDict):
    """The answer of one estimator."""

    name: str
    device_bytes: int | None
    bound_bytes: int | None
    peak_reserved_bytes: int | None
    ratio_to_traced: float | None
    partial: bool
    leaves_out: str
    problem: str | None
    warnings: list[str]


class CompareOutput(TypedDict):
    """Answers of all estimators."""

    gpu: str
    estimators: list[EstimatorRow]
    elapsed_s: float


class PlannedStart(TypedDict):
    """A pending job; starts by policy, in seconds, null: never."""

    id: int
    name: str
    duration_s: float
    duration_source: str
    starts_in_s: dict[str, float | None]
    starts_in_with_one_more_gpu_s: dict[str, float | None]


class ForecastOutput(TypedDict):
    """`cotenant simulate --forecast`."""

    running: int
    jobs: list[PlannedStart]


class GpuMemory(TypedDict):
    """A GPU model or MIG profile that estimates can be made for."""

    name: str
    memory_bytes: int


class GpuModelsOutput(TypedDict):
    """`cotenant estimate --gpu list`."""

    profiles: list[GpuMemory]


OUTPUTS: Mapping[str, Any] = {
    "submit": SubmitHabitOutput,
    "run": JobOutput,
    "ls": JobsOutput,
    "show": ShowOutput,
    "explain": answers.ExplainAnswer,
    "events": EventsOutput,
    "logs": LogsOutput,
    "wait": WaitOutput,
    "attach": JobOutput,
    "cancel": CallOutcome,
    "hold": CallOutcome,
    "release": CallOutcome,
    "update": UpdateOutcome,
    "requeue": CallOutcome,
    "history": HistoryOutput,
    "sbatch": SubmitOutput,
    "squeue": SlurmQueueOutput,
    "scancel": CallOutcome,
    "sinfo": NodesOutput,
    "sacct": SlurmAccountingOutput,
    "top": TopOutput,
    "web": WebOutput,
    "gpus": GpusOutput,
    "estimate": EstimateOutput,
    "compare": CompareOutput,
    "estimate --gpu list": GpuModelsOutput,
    "simulate --forecast": ForecastOutput,
    "completion": CompletionOutput,
    **ADMIN_OUTPUTS,
    **SLURM_OUTPUTS,
    **STUDY_OUTPUTS,
}
"""By verb, with the option that changes what is printed."""
