"""The JSON objects in answers of the HTTP API: mypy holds the handlers to them, and OpenAPI is made from them.

Bytes are integers, durations are seconds, ratios are 0..1, times are RFC 3339 in UTC. Unknown values are null.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

State = Literal["PENDING", "HELD", "STARTING", "RUNNING", "COMPLETED", "FAILED", "OOM", "TIMEOUT", "CANCELLED", "LOST"]


class UsageView(TypedDict):
    """What attempts took of their GPUs, summed over time and GPUs."""

    gpu_s: Annotated[float, "GPU seconds in which GPUs were reserved for it"]
    gpu_share_s: Annotated[float, "the same, where a second shared by n attempts counts 1/n for each"]
    mean_bytes: Annotated[int | None, "mean memory held per GPU"]
    smact: Annotated[float | None, "mean SM activity of its own"]
    power_w: Annotated[float | None, "mean power attributed to it"]
    energy_j: Annotated[float | None, "energy attributed to it"]
    idle_energy_j: Annotated[float | None, "its share of what idle GPUs would have drawn; part of `energy_j`"]
    metered_s: Annotated[float, "GPU seconds for which energy was read"]


class UsageSum(UsageView):
    """Usage of several jobs."""

    jobs: int
    promised_bytes: Annotated[int | None, "mean promise per GPU, over the same seconds as `mean_bytes`"]
    ooms: Annotated[int, "attempts that ran out of memory"]
    idle_gpu_s: Annotated[float, "seconds for which attempts were idle by `[idle]`, times their GPUs"]


class UserUsage(UsageSum):
    """Usage of one user."""

    user: str


class DayUsage(UsageSum):
    """Usage of the attempts that ended on one day; running ones count for today."""

    day: Annotated[str, "in UTC, `2026-11-22`"]


class WorkloadCoRun(TypedDict):
    """What a workload did beside others."""

    workloads: list[str]
    seconds: float | None
    steps_hz: float | None
    slowdown: float | None


class WorkloadUsage(TypedDict):
    """What is known of the jobs that run the same command."""

    workload: str
    runs: int
    need_bytes: int | None
    is_certain: Annotated[bool, "whether a run has confirmed `need_bytes`"]
    min_bytes: Annotated[int | None, "a run with less ran out of memory"]
    duration_s: Annotated[float | None, "median"]
    solo_s: Annotated[float, "seconds observed alone on a GPU"]
    smact: float | None
    drama: float | None
    steps_hz: float | None
    sensitivity: Annotated[float | None, "predicted slowdown beside an average neighbor"]
    aggressiveness: Annotated[float | None, "slowdown that it causes an average neighbor"]
    co_runs: list[WorkloadCoRun]


class CoRunView(TypedDict):
    """What an attempt did beside the same neighbors."""

    seconds: float
    smact: float | None
    steps_hz: float | None
    slowdown: Annotated[float | None, "step time relative to the step time alone"]


class AttemptCoRun(CoRunView):
    """A co-run, with the jobs that shared the GPU."""

    neighbor_ids: Annotated[list[int | None], "null for a job of another user"]


class OomView(TypedDict):
    """Evidence that GPU memory ran out."""

    exception: bool
    message: bool
    tried_bytes: int | None
    in_use_bytes: int | None
    free_bytes: int | None


class ExitView(TypedDict):
    """How an attempt ended."""

    exit_code: int | None
    signal: int | None
    reason: str
    detail: str
    oom: OomView


class AttemptSummary(TypedDict):
    """One run of a job."""

    number: int
    gpu_uuids: list[str]
    sharing: str
    promised_bytes: int
    peak_observed_bytes: dict[str, int]
    pid: int | None
    placed_at: str | None
    started_at: str | None
    ended_at: str | None
    stop_reason: str | None
    exit: ExitView | None


class OverrunView(TypedDict):
    """A neighbor that held more than its promise when the attempt ran out of memory."""

    job_id: int
    gpu_uuid: str
    promised_bytes: int
    observed_bytes: int


class ChargeView(TypedDict):
    """What the attempt cost a neighbor when it held more than its promise."""

    at: str | None
    victim_id: int
    gpu_uuid: str
    observed_bytes: int
    usage: UsageView | None


class AttemptView(AttemptSummary):
    """One run of a job, with telemetry."""

    gpu_indices: list[int | None]
    usage: UsageView | None
    co_runs: list[AttemptCoRun]
    forgiven: Annotated[bool, "lost its memory to a neighbor's overrun: counts against no limit and costs nothing"]
    overruns: list[OverrunView]
    charges: list[ChargeView]
    idle_s: Annotated[float, "seconds for which it was idle by `[idle]`, so far"]
    moved: Annotated[bool, "it was stopped so that its job continues on other GPUs"]
    saved: Annotated[bool, "it was stopped and said by exit code 85 that its state is saved"]
    stopping_s: Annotated[float | None, "from the first signal of a stop to its end"]
    startup_s: Annotated[float | None, "from its start until samples showed it on a GPU; known at its end"]


class MoveCostView(TypedDict):
    """What it costs to move jobs of this workload to other GPUs, by the attempts so far."""

    seconds: Annotated[float, "saving and starting; 30 for each that is not known"]
    save_s: Annotated[float | None, "median from the signal to the end with its state saved"]
    startup_s: Annotated[float | None, "median from a start until samples show it on a GPU"]
    saves: Annotated[int, "stops after which its state was saved, of the newest 8"]
    unsaved: Annotated[int, "moves after which it was not"]


class EstimateView(TypedDict):
    """Predicted GPU memory of one process on one GPU."""

    estimator: str
    version: str
    gpu: str
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int
    context_bytes: int
    margin_bytes: int
    device_bytes: Annotated[int, "reserved + context"]
    bound_bytes: Annotated[int, "device + margin: what a policy must find free"]
    coverage: Annotated[float, "probability that the true peak fits into the bound"]
    breakdown_bytes: dict[str, int]
    smact: Annotated[float | None, "expected SM activity alone on the GPU"]
    smact_low: Annotated[float | None, "lower end of its interval"]
    smact_high: Annotated[float | None, "upper end: 90% of jobs are below"]
    smocc: float | None
    partial: Annotated[bool, "the estimate is a lower bound; a warning says why"]
    warnings: list[str]


class JobView(TypedDict):
    """A job in a list."""

    id: int
    label: Annotated[str, "`17`, or `17_3` for a task of an array"]
    array_id: int | None
    array_index: int | None
    name: str
    user: str
    state: str
    state_short: str
    reason: str
    rule: Annotated[str, "name of the rule for which it waits, or empty"]
    exit_code: Annotated[int | None, "128 + N after signal N, 124 after the time limit, 143 after a cancellation"]
    gpus: int
    gpu_uuids: list[str]
    gpu_indices: list[int | None]
    sharing: Annotated[str | None, "how the newest attempt shares its GPUs"]
    need_bytes: int | None
    promised_bytes: int | None
    observed_bytes: int | None
    attempts: int
    priority: int
    time_limit_s: float | None
    submitted_at: str | None
    started_at: str | None
    ended_at: str | None
    queueing_s: Annotated[float | None, "submission to first start"]
    waited_s: Annotated[float | None, "in the queue before all attempts so far, retries included"]
    running_s: Annotated[float | None, "of the newest attempt"]
    idle_s: Annotated[float | None, "for so long it has held its GPUs and computed nothing; null where it computes"]
    jct_s: Annotated[float | None, "job completion time: submission to end"]
    usage: UsageView | None
    advice: Annotated[list[str], "what its run says about how to submit it next time; empty until it ended"]


class FilePaths(TypedDict):
    """Files of a job, on the daemon's machine."""

    estimate_log_path: str | None
    stdout_path: str | None
    stderr_path: str | None


class QuarantinedView(TypedDict):
    """An event of a job that could not be applied, and was left out or replaced."""

    seq: Annotated[int, "its number in the journal"]
    type: str
    at: Annotated[str | None, "when it was left out"]
    cause: str
    error: str


class JobDetail(JobView, FilePaths):
    """A job with its spec, estimate and attempts. Values of its environment are not included."""

    command: list[str]
    workdir: str
    environment_names: list[str]
    uid: int
    source: str | None
    declared_bytes: int | None
    estimator: str | None
    exclusive: bool
    requested_sharing: str
    max_slowdown: float | None
    after: list[int]
    after_any: list[int]
    after_failed: list[int]
    singleton: bool
    begin_at: str | None
    requeue: bool
    retries: int
    time_slice_s: float | None
    checkpoint_signal: Annotated[str | None, "after this signal it saves its state; null: it cannot"]
    checkpoint_grace_s: Annotated[float, "seconds that saving its state may take"]
    move_cost: MoveCostView | None
    notify: str | None
    progress: str | None
    max_attempts: int
    min_memory_bytes: int | None
    exclusive_retry: bool
    estimate: EstimateView | None
    estimate_error: str | None
    quarantined: Annotated[list[QuarantinedView], "events of the job that could not be applied"]
    attempt_list: list[AttemptView]


class RejectionView(TypedDict):
    """Why a GPU did not qualify."""

    gpu: int | None
    gpu_uuid: str
    rule: str
    reason: str


class DeferralView(TypedDict):
    """Why a job waits."""

    reason: str
    rule: Annotated[str, "name of the rule that decides, or empty"]
    rejections: list[RejectionView]


class Explanation(DeferralView):
    """Why a job waits, or the state that it is in."""

    id: int
    state: str
    quarantined: Annotated[list[QuarantinedView], "events of the job that could not be applied"]


class PlacementView(TypedDict):
    """Where a job would start."""

    gpu_uuids: list[str]
    gpu_indices: list[int | None]
    sharing: str
    promised_bytes: int


class Preview(TypedDict):
    """What a dry run says of every job."""

    name: str
    command: list[str]
    gpus: int
    need_bytes: int | None
    estimate: EstimateView | None
    estimate_error: str | None


class StartPreview(Preview, PlacementView):
    """The job would start now."""

    decision: Literal["start"]


class WaitPreview(Preview, DeferralView):
    """The job would wait."""

    decision: Literal["wait"]


class JobEvent(TypedDict):
    """An event of a job; `state` is the state that it led to."""

    at: str | None
    at_s: float
    event: str
    cause: str
    text: str
    state: str | None


class TokenView(TypedDict):
    """A token, without its secret."""

    id: str
    name: str
    user: str
    admin: bool
    created_at: str | None
    expires_at: str | None


class NewToken(TokenView):
    """A new token; `text` is its only copy."""

    text: str
