"""The requests and answers of the HTTP API, around `json_objects`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from cotenant.core.ports import SignalTarget
from cotenant.daemon.api.schemas.gpu_schemas import GpuHistory, GpuStatus, ServerTotals
from cotenant.daemon.api.schemas.json_objects import (
    DayUsage,
    Explanation,
    JobDetail,
    JobEvent,
    JobView,
    NewToken,
    StartPreview,
    TokenView,
    UserUsage,
    WaitPreview,
    WorkloadUsage,
)


class JobsBody(TypedDict):
    """Jobs to submit, all or none."""

    jobs: Annotated[list[dict[str, Any]], "fields of `JobSpec` without `user`, `uid` and `limits`; see its schema"]


class SubmitBody(JobsBody, total=False):
    """Request to submit jobs."""

    dry_run: Annotated[bool, "queue nothing, and answer what would happen"]


class ChangeBody(TypedDict, total=False):
    """Request to change a job."""

    reason: Annotated[str, "saved with the event"]


class UpdateBody(ChangeBody, total=False):
    """Request to update a job."""

    fields: Annotated[dict[str, Any], "new values of fields of `JobSpec`"]


class ChangeManyBody(ChangeBody, total=False):
    """Request to change many jobs: those of `refs`, or those that pass `filters`."""

    verb: Annotated[str, "`cancel`, `hold`, `release` or `requeue`"]
    refs: Annotated[list[str], "`17`, `17_3` and `17_[3-5]`"]
    filters: Annotated[dict[str, Any], 'as in the query of `GET /v1/jobs`, e.g. `{"active": 1}`']


class SignalBody(TypedDict, total=False):
    """Request to signal running jobs: those of `refs`, or those that pass `filters`."""

    signal: Annotated[int, "its number"]
    target: Annotated[SignalTarget, "default `programs`: without a shell that runs them; `command`: the first process"]
    refs: Annotated[list[str], "`17`, `17_3` and `17_[3-5]`"]
    filters: Annotated[dict[str, Any], 'as in the query of `GET /v1/jobs`, e.g. `{"user": "ann"}`']


class PruneBody(TypedDict, total=False):
    """Request to remove what finished jobs left."""

    older_than_s: Annotated[float, "jobs that ended longer ago"]
    all_users: Annotated[bool, "jobs of all users; for admins"]
    dry_run: bool


class TokenBody(TypedDict, total=False):
    """Request to create a token."""

    name: str
    admin: bool
    lifetime_s: float | None
    user: str | None


class Answer(TypedDict):
    """Every answer."""

    schema: int


class SubmitAnswer(Answer):
    """Jobs that were queued, or the previews of a dry run."""

    jobs: list[JobView] | list[StartPreview | WaitPreview]


class JobsAnswer(Answer):
    """Jobs, oldest first."""

    jobs: Annotated[list[JobView] | list[dict[str, Any]], "with `records=1`, encoded `Job`s; with `fields`, only those"]
    counts: Annotated[dict[str, int], "all jobs by state; empty on a page `after` others"]


class IdsAnswer(Answer):
    """Ids that references stand for."""

    ids: list[int]


class JobAnswer(Answer):
    """A job."""

    job: JobDetail


class ChangeError(TypedDict):
    """Why a job was not changed."""

    id: int
    kind: str
    message: str
    hint: str | None
    exit_code: int


class ChangeManyAnswer(Answer):
    """Jobs right after a change, in its order, and why others were not changed."""

    jobs: list[JobView]
    errors: list[ChangeError]


class PruneAnswer(Answer):
    """How much was removed, or would be."""

    jobs: int
    bytes: Annotated[int, "of files; the environments in the journal come on top"]


class WaitAnswer(JobAnswer):
    """A job, and whether it has reached the requested state."""

    reached: bool


class ExplainAnswer(Answer, Explanation):
    """Why a job waits."""


class MemoryProfileView(TypedDict):
    """Memory of the job over the traced steps, in few points."""

    category_bytes: Annotated[dict[str, list[int]], "requested bytes at each point, by category"]
    phases: Annotated[list[tuple[int, str]], "first point and name of each phase"]


class MemoryProfileAnswer(Answer):
    """Memory of the job over the traced steps; null where no script was traced."""

    id: int
    profile: MemoryProfileView | None


class EventsAnswer(Answer):
    """Events of a job, oldest first."""

    id: int
    events: list[JobEvent]


class GpusAnswer(Answer):
    """The GPUs, in display order."""

    gpus: list[GpuStatus]
    totals: Annotated[ServerTotals | None, "null unless wanted"]


class GpuHistoryAnswer(Answer):
    """The GPUs over time."""

    gpus: list[GpuHistory]


class UsageAnswer(Answer):
    """Usage by user or day, or history by workload."""

    usage: list[UserUsage] | list[DayUsage] | list[WorkloadUsage]


class StatusInfo(TypedDict):
    """Properties of a daemon that do not change while it runs."""

    version: str
    pid: int
    started_at: str | None
    socket: str
    state_dir: str
    policy: str
    backend: str
    engine: str
    simulate: str | None
    time_scale: float
    tick_s: float
    users: str
    notifications: bool
    estimator: str | None
    tcp: str | None
    web: str | None


class CallerView(TypedDict):
    """Who sent the request, as the kernel or a token says."""

    name: str
    uid: int
    admin: Annotated[bool, "may see and change all jobs"]


class PilotAllocationView(Answer):
    """An allocation of the pilot."""

    job_id: Annotated[str | None, "its number at Slurm; null while it may not have been accepted"]
    state: Literal["requested", "pending", "starting", "ready", "released"]
    reason: Annotated[str, "of Slurm, why it is pending"]
    host: Annotated[str | None, "where it runs; null before"]
    ends_at: Annotated[str | None, "when its time limit is reached; null without one, or before it runs"]


class PilotView(Answer):
    """The pilot, which requests allocations of Slurm."""

    state: Annotated[
        Literal["on", "paused", "unreachable"], "paused: too many failures; unreachable: Slurm does not answer"
    ]
    message: Annotated[str, "why there are no more GPUs yet, or empty"]
    allocations: list[PilotAllocationView]


class StatusAnswer(Answer, StatusInfo):
    """The daemon."""

    caller: CallerView

    sharing_modes: list[str]
    jobs: dict[str, int]
    pilot: PilotView | None
    journal_error: str | None


class ShutdownAnswer(Answer):
    """The daemon ends."""

    pid: int


class TokenAnswer(Answer):
    """A token."""

    token: TokenView


class NewTokenAnswer(Answer):
    """A new token."""

    token: NewToken


class TokensAnswer(Answer):
    """Tokens, oldest first."""

    tokens: list[TokenView]


class _TraceErrorFields(TypedDict, total=False):
    """Of a script that could not be traced: the kind of failure, and the last lines of its output."""

    cause: str
    last_output: list[str]


class ErrorView(_TraceErrorFields):
    """An error."""

    kind: str
    message: str
    hint: str | None
    exit_code: int


class ErrorAnswer(Answer):
    """Why a request failed."""

    error: ErrorView
