"""What `--json` prints of the verbs that need no daemon: simulate, measure, calibrate, demo and study."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from cotenant.cli.schemas.json_learn_outputs import LEARN_OUTPUTS

# -- simulate ---------------------------------------------------------------------------------------------------------


class TraceManifest(TypedDict):
    """A trace, and the steps that led from its source to the jobs."""

    trace: str
    source: str
    steps: list[str]
    digest: Annotated[str, "of the jobs; equal digests mean equal jobs"]
    jobs: int
    gpus_mean: float
    duration_mean_s: float
    span_s: Annotated[float, "first to last submission"]
    work_gpu_s: Annotated[float, "sum of run time times GPUs"]
    workloads: Annotated[int, "distinct ones"]


class SimulatedCluster(TypedDict):
    """The servers of a simulation."""

    text: Annotated[str, "as given with --gpus"]
    gpus: int
    reference_gpu: Annotated[str | None, "the model that the run times are from"]
    note: Annotated[str | None, "how run times are scaled to other models"]


class MetricInterval(TypedDict):
    """Mean of the bootstrap samples, and the interval that holds 95 % of them."""

    mean: float | None
    low: float | None
    high: float | None


class MetricChange(TypedDict, total=False):
    """Relative change of a metric against the baseline; with --bootstrap, over paired samples, too."""

    trace: Annotated[float | None, "on the trace itself"]
    mean: float | None
    low: float | None
    high: float | None


class _PolicyRun(TypedDict):
    policy: str
    digest: Annotated[str, "of all placements; equal digests mean equal schedules"]
    wall_s: Annotated[float, "wall-clock time of the simulation"]
    metrics: Annotated[dict[str, float | None], "by name, in seconds, joules and ratios; null: not defined"]


class PolicyRun(_PolicyRun, total=False):
    """The schedule of one policy."""

    intervals: Annotated[dict[str, MetricInterval], "by metric; with --bootstrap"]
    change: Annotated[dict[str, MetricChange | None], "by metric, against `exclusive`; where it is among the policies"]


class TraceDescriptionOutput(TypedDict):
    """`cotenant simulate --describe`: what a trace is like."""

    name: str
    jobs: int
    users: int
    span_s: Annotated[float, "first to last submission"]
    gpu_s: Annotated[float, "GPU seconds of all jobs, each run alone"]
    failed: Annotated[float, "ratio of jobs that the trace calls failed"]
    distributions: Annotated[
        list[dict[str, Any]], "of each measure: `name`, `unit`, `count`, `mean`, `quantiles` by percentage, `max`"
    ]
    sizes: Annotated[
        list[dict[str, Any]], "by GPUs of a job: `gpus_min`, `gpus_max` (null: or more), ratios `jobs` and `gpu_time`"
    ]


class SimulateOutput(TypedDict):
    """`cotenant simulate`: the trace under every policy."""

    trace: TraceManifest
    cluster: SimulatedCluster
    estimator: str
    seed: int
    bootstrap: Annotated[int, "samples; 0: none"]
    policies: list[PolicyRun]


class SimulateCatalog(TypedDict):
    """`cotenant simulate --list`."""

    traces: list[str]
    formats: Annotated[dict[str, str], "description by name"]
    policies: Annotated[dict[str, dict[str, Any]], "default options by name"]
    estimators: list[str]


# -- measure, calibrate -----------------------------------------------------------------------------------------------


class MeasureOutput(TypedDict):
    """`cotenant measure`: one row for each run, with the columns of `rows.csv` (with --pairs, of `pairs.csv`)."""

    rows: Annotated[list[dict[str, Any]], "the data card in the folder describes the columns"]


class DryRunEstimate(TypedDict):
    """The estimate of one job of a campaign."""

    job: str
    device_bytes: int | None
    peak_reserved_bytes: int | None
    problem: Annotated[str | None, "why there is no estimate"]
    warnings: list[str]


class DryRunOutput(TypedDict):
    """`cotenant measure --dry-run`."""

    estimates: list[DryRunEstimate]


class ConvSummary(TypedDict):
    """`cotenant measure --convs`: measured workspaces of convolutions against the rule and the table."""

    calls: int
    failed: int
    rule_near: Annotated[str, "`N of M`: within 5 % or 1 MiB"]
    rule_low: Annotated[int, "more than 1 MiB below the measured size"]
    table_near: str
    table_low: int
    without_workspace: int
    median_workspace_bytes: int | None


class _CalibrationStep(TypedDict):
    step: str
    outside_bytes: Annotated[int | None, "device memory outside of the caching allocator"]
    by: Annotated[str, "`process` or `device`: what the driver could report"]
    problem: str


class CalibrationStep(_CalibrationStep, total=False):
    """One process of a calibration. The optional fields are what it read from torch."""

    gpu: str
    capability: list[int]
    sm_count: int
    torch_total_bytes: int
    device_total_bytes: int
    device_free_bytes: int
    reserved_bytes: int
    allocated_bytes: int
    torch: str
    cuda: str | None
    cudnn: Annotated[int | str | None, "version as torch gives it, or that of the package"]
    python: str
    allocations: Annotated[list[int], "sizes of the first 200 allocations"]
    handle_bytes: Annotated[int, "workspace of a cuBLAS handle"]
    lt_bytes: Annotated[int, "workspace of cuBLASLt"]


class CalibrateOutput(TypedDict):
    """`cotenant calibrate`: the GPU specification, and the processes that it was measured with."""

    profile: Annotated[str, "the specification, in TOML"]
    steps: list[CalibrationStep]


# -- demo -------------------------------------------------------------------------------------------------------------


class DemoScript(TypedDict):
    """A training script of the demo."""

    script: str
    args: list[str]
    source: Annotated[str, "of the measurement"]
    measured_bytes: int
    estimated_bytes: int | None
    bound_bytes: int | None
    faketensor_bytes: Annotated[int | None, "FakeTensor's estimate, published beside the measurement"]
    problem: Annotated[str | None, "why there is no estimate"]
    elapsed_s: float


class DemoGpuRun(TypedDict):
    """The script that ran on a GPU of this machine; `reason` says why none did."""

    script: str
    gpu: str | None
    estimated_bytes: int | None
    measured_bytes: int | None
    reason: str


class DemoEstimates(TypedDict):
    """The first part."""

    gpu: str
    scripts: list[DemoScript]
    real_gpu: DemoGpuRun


class DemoRun(TypedDict):
    """Jobs on the simulated server under one policy, in the server's time."""

    jobs: int
    makespan_s: float
    mean_jct_s: float
    mean_delay_s: float
    ooms: Annotated[int, "attempts that ran out of memory"]
    recoveries: Annotated[list[str], "a sentence for each job with an OOM"]
    unfinished: list[str]


class DemoSlurmRun(TypedDict):
    """The jobs on Slurm in one way, in the time of the simulated GPUs."""

    jobs: int
    makespan_s: float
    mean_jct_s: float
    ooms: Annotated[int, "attempts that ran out of memory"]
    recoveries: Annotated[list[str], "a sentence for each job with an OOM"]
    failed: Annotated[list[str], "jobs that did not complete, as `NAME: STATE`"]


class DemoSlurm(TypedDict):
    """The jobs on a Slurm of the demo's own."""

    whole_gpus: DemoSlurmRun
    pack: DemoSlurmRun


class DemoOutput(TypedDict, total=False):
    """`cotenant demo`: estimates and runs; with --only, one of the three."""

    estimates: DemoEstimates
    runs: Annotated[dict[str, DemoRun], "by policy"]
    slurm: DemoSlurm


# -- study ------------------------------------------------------------------------------------------------------------


class OverheadOutput(TypedDict):
    """`cotenant study overhead`: one row for each run, with the columns of `overhead.csv`."""

    rows: list[dict[str, Any]]
    report: Annotated[str, "path of the page"]


class MetricVerdict(TypedDict):
    """What one metric says about the shape of a kernel."""

    metric: str
    smallest: Annotated[float | None, "its value at one thread in one block"]
    by_blocks: Annotated[float | None, "rank correlation with the number of blocks, at the same threads"]
    by_threads: Annotated[float | None, "rank correlation with the number of threads, at the same blocks"]
    text: str


class MetricsOutput(TypedDict):
    """`cotenant study metrics`: one row for each kernel, and verdicts by source of the metric."""

    rows: list[dict[str, Any]]
    verdicts: dict[str, list[MetricVerdict]]
    report: Annotated[str, "path of the page"]


class CollocationResult(TypedDict):
    """A group of jobs under one way to share a GPU: means over its repeats; null where a figure was not measured."""

    jobs: list[str]
    sharing: str
    until: Annotated[str, "`seconds`, `steps` or `refill`: what ended the group"]
    repeats: Annotated[int, "runs in which all jobs have step times"]
    gain: Annotated[float | None, "work per time over that of the same jobs in turn"]
    slowdowns: Annotated[list[float], "of each job, in the order of `jobs`; empty without step times"]
    memory_bytes: float | None
    memory_sum_bytes: Annotated[float | None, "sum over the jobs alone"]
    smact: float | None
    smact_sum: Annotated[float | None, "sum over the jobs alone"]
    power_w: float | None
    energy_ratio: Annotated[float | None, "energy over that of the same work in turn"]
    host_cpu_cores: Annotated[float | None, "CPU cores that the jobs' processes used"]
    pcie_rx_bytes_s: Annotated[float | None, "to the GPU"]
    makespan_s: Annotated[float | None, "of a group with fixed work and without refill"]
    problem: Annotated[str, "why there are no figures; empty if there are"]


class AssumptionCheckView(TypedDict):
    """Slowdowns that a shipped assumption gives, against measured ones."""

    assumption: str
    cases: Annotated[int, "slowdowns compared; with none, the errors are null"]
    median_error: Annotated[float | None, "relative"]
    p90_error: float | None
    bias: Annotated[float | None, "mean error with its sign; above 0: assumed too slow"]
    worst: str


class _CollocateOutput(TypedDict):
    rows: list[dict[str, Any]]
    results: list[CollocationResult]
    report: Annotated[str, "path of the page"]


class CollocateOutput(_CollocateOutput, total=False):
    """`cotenant study collocate`: one row for each job of each run, with the columns of `collocation.csv`."""

    workloads: Annotated[int, "in the fitted table; with --install or --check"]
    sharing_modes: Annotated[list[str], "that were fitted, e.g. `mps`, `mps:30`"]
    checks: Annotated[list[AssumptionCheckView], "with --check"]
    table: Annotated[str, "file of the installed table; with --install"]


class GroupAdvice(TypedDict):
    """What the guidelines say of jobs on one GPU."""

    jobs: list[str]
    verdict: Annotated[str, "`share`, `marginal` (it fits, but the SMs are busy), `alone` (it does not fit), `unknown`"]
    sharing: Annotated[str | None, "`mps`, `mig` or `time-sliced`; null with `alone`"]
    smact_sum: Annotated[float | None, "null where one is not known"]
    memory_sum_bytes: int | None
    reasons: list[str]
    gains: Annotated[dict[str, float], "measured of the same jobs, by way to share; with --study"]
    best: Annotated[str, "the way with the largest gain; empty without"]


class AdviseOutput(TypedDict):
    """`cotenant advise`: best first."""

    advice: list[GroupAdvice]


class ExportOutput(TypedDict):
    """`cotenant study export`: how much was exported, and where to."""

    runs: int
    samples: int
    written: Annotated[list[str], "files, and the MLflow URI"]


STUDY_OUTPUTS: Mapping[str, Any] = {
    "simulate": SimulateOutput,
    "simulate --describe": TraceDescriptionOutput,
    "simulate --list": SimulateCatalog,
    "measure": MeasureOutput,
    "measure --dry-run": DryRunOutput,
    "measure --convs": ConvSummary,
    "calibrate": CalibrateOutput,
    "demo": DemoOutput,
    **LEARN_OUTPUTS,
    "study overhead": OverheadOutput,
    "study metrics": MetricsOutput,
    "study collocate": CollocateOutput,
    "study export": ExportOutput,
    "advise": AdviseOutput,
}
"""By verb, with the option that changes what is printed."""
