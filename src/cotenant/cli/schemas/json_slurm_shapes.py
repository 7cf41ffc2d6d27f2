"""The shape of Slurm's own JSON, for `squeue --json` and `sacct --json`; its source is in `slurm_verbs.json_output`.

Times are seconds since 1970, 0 where there is none; time limits are minutes.
"""

from __future__ import annotations

from typing import Annotated, TypedDict


class SlurmNumber(TypedDict):
    """A number that may be unset or without limit."""

    set: bool
    infinite: bool
    number: int


class SlurmSignal(TypedDict):
    """The signal that ended a job."""

    id: SlurmNumber
    name: str


class SlurmExitCode(TypedDict):
    """How a job ended."""

    status: Annotated[list[str], "`SUCCESS`, `ERROR` or `SIGNALED`"]
    return_code: SlurmNumber
    signal: SlurmSignal


class SlurmTres(TypedDict):
    """An amount of a trackable resource, such as `gres` named `gpu`."""

    type: str
    name: str
    id: int
    count: int


class SlurmTaskTres(SlurmTres):
    """The same, of one task."""

    task: int
    node: str


class SlurmPlugin(TypedDict):
    """What made the JSON."""

    type: str
    name: str
    data_parser: Annotated[str, "whose shape it has: `data_parser/v0.0.41`"]
    accounting_storage: str


class SlurmClient(TypedDict):
    """The user who sent the request."""

    source: str
    user: str
    group: str


class SlurmVersion(TypedDict):
    """Parts of a version."""

    major: str
    minor: str
    micro: str


class SlurmRelease(TypedDict):
    """The Slurm whose shape the JSON has."""

    version: SlurmVersion
    release: str
    cluster: str


class SlurmMeta(TypedDict):
    """About the JSON itself."""

    plugin: SlurmPlugin
    client: SlurmClient
    command: list[str]
    slurm: SlurmRelease


class SlurmJson(TypedDict):
    """What Slurm prints beside the records."""

    meta: SlurmMeta
    errors: list[str]
    warnings: list[str]


class SlurmQueuedJob(TypedDict):
    """A job, as squeue prints it."""

    account: str
    array_job_id: SlurmNumber
    array_max_tasks: SlurmNumber
    array_task_id: SlurmNumber
    array_task_string: Annotated[str, "tasks of a record of several, `1-3,7`"]
    batch_flag: bool
    batch_host: str
    cluster: str
    command: str
    comment: str
    cpus: SlurmNumber
    cpus_per_task: SlurmNumber
    current_working_directory: str
    dependency: str
    derived_exit_code: SlurmExitCode
    eligible_time: SlurmNumber
    end_time: SlurmNumber
    exit_code: SlurmExitCode
    features: str
    flags: list[str]
    gres_detail: Annotated[list[str], "its GPUs: `gpu:2(IDX:0,1)`"]
    hold: bool
    job_id: int
    job_state: list[str]
    max_nodes: SlurmNumber
    memory_per_cpu: SlurmNumber
    memory_per_node: SlurmNumber
    name: str
    nice: int
    node_count: SlurmNumber
    nodes: str
    partition: str
    priority: SlurmNumber
    qos: str
    requeue: bool
    restart_cnt: int
    shared: list[str]
    standard_error: str
    standard_input: str
    standard_output: str
    start_time: SlurmNumber
    state_description: Annotated[str, "why it waits, with the numbers"]
    state_reason: str
    submit_time: SlurmNumber
    tasks: SlurmNumber
    time_limit: SlurmNumber
    time_minimum: SlurmNumber
    tres_alloc_str: str
    tres_per_job: str
    tres_per_node: str
    tres_req_str: str
    user_id: int
    user_name: str
    wckey: str


class SlurmQueueOutput(SlurmJson):
    """Jobs that are not over, or those that the filters name."""

    jobs: list[SlurmQueuedJob]
    last_backfill: SlurmNumber
    last_update: SlurmNumber


class SlurmRunningTasks(TypedDict):
    """How many tasks of an array may run at once."""

    tasks: int


class SlurmMaxRunning(TypedDict):
    """Its nesting."""

    running: SlurmRunningTasks


class SlurmArrayLimits(TypedDict):
    """Its nesting."""

    max: SlurmMaxRunning


class SlurmArray(TypedDict):
    """The place of a job in an array."""

    job_id: int
    limits: SlurmArrayLimits
    task_id: SlurmNumber
    task: str


class SlurmAssociation(TypedDict):
    """Whom a job is charged to."""

    account: str
    cluster: str
    partition: str
    user: str
    id: int


class SlurmComment(TypedDict):
    """Comments, all empty."""

    administrator: str
    job: str
    system: str


class SlurmRequired(TypedDict):
    """What a job requires of the host."""

    CPUs: int
    memory_per_cpu: SlurmNumber
    memory_per_node: SlurmNumber


class SlurmState(TypedDict):
    """The state of a job."""

    current: list[str]
    reason: str


class SlurmJobTime(TypedDict):
    """Times of a job, seconds."""

    elapsed: int
    eligible: int
    end: int
    limit: Annotated[SlurmNumber, "minutes"]
    planned: SlurmNumber
    start: int
    submission: int
    suspended: int


class SlurmJobTres(TypedDict):
    """Trackable resources of a job."""

    allocated: list[SlurmTres]
    requested: list[SlurmTres]


class SlurmWckey(TypedDict):
    """Empty."""

    wckey: str
    flags: list[str]


class SlurmStepNodes(TypedDict):
    """The node of a step."""

    count: int
    range: str
    list: list[str]


class SlurmEnergy(TypedDict):
    """Energy of a step, joules."""

    consumed: SlurmNumber


class SlurmStatistics(TypedDict):
    """What was measured of a step."""

    energy: SlurmEnergy


class SlurmStepId(TypedDict):
    """Names a step."""

    id: str
    name: str


class SlurmTasks(TypedDict):
    """Tasks of a step."""

    count: int


class SlurmStepTime(TypedDict):
    """Times of a step."""

    elapsed: int
    end: SlurmNumber
    start: SlurmNumber
    suspended: int


class SlurmTresUsage(TypedDict):
    """Usage of trackable resources; the peak of GPU memory on one GPU is `gres` named `gpumem`, in bytes."""

    average: list[SlurmTres]
    max: list[SlurmTaskTres]
    min: list[SlurmTaskTres]
    total: list[SlurmTres]


class SlurmStepTres(TypedDict):
    """Trackable resources of a step; what Slurm reads is under `requested`, as in sacct's TRESUsageIn."""

    allocated: list[SlurmTres]
    consumed: SlurmTresUsage
    requested: SlurmTresUsage


class SlurmStep(TypedDict):
    """The batch step of a job."""

    exit_code: SlurmExitCode
    kill_request_user: str
    nodes: SlurmStepNodes
    state: list[str]
    statistics: SlurmStatistics
    step: SlurmStepId
    tasks: SlurmTasks
    time: SlurmStepTime
    tres: SlurmStepTres


class SlurmAccountedJob(TypedDict):
    """A job, as sacct prints it."""

    account: str
    allocation_nodes: int
    array: SlurmArray
    association: SlurmAssociation
    cluster: str
    comment: SlurmComment
    derived_exit_code: SlurmExitCode
    exit_code: SlurmExitCode
    flags: list[str]
    hold: bool
    job_id: int
    kill_request_user: str
    name: str
    nodes: str
    partition: str
    priority: SlurmNumber
    qos: str
    required: SlurmRequired
    restart_cnt: int
    state: SlurmState
    stderr: str
    stdin: str
    stdout: str
    steps: list[SlurmStep]
    submit_line: str
    time: SlurmJobTime
    tres: SlurmJobTres
    used_gres: str
    user: str
    wckey: SlurmWckey
    working_directory: str


class SlurmAccountingOutput(SlurmJson):
    """Jobs that were there in the interval, or those that the filters name."""

    jobs: list[SlurmAccountedJob]
