"""The options of `cotenant simulate`: which trace, on which GPUs, under which policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from cotenant.cli import output_files
from cotenant.cli.completion import complete_gpu_names, complete_policies
from cotenant.cli.options import flag, option
from cotenant.cli.parameter_types import PATH, Parsed, integer, number
from cotenant.core.errors import UsageError
from cotenant.core.units import parse_duration, shortened

if TYPE_CHECKING:
    from cotenant.scheduling.overrun_watch import OverrunAction
    from cotenant.sim.engine.config import SimulationConfig
    from cotenant.sim.trace import Trace

DEFAULT_POLICIES = ("exclusive", "most-memory")


def parse_policies(text: str) -> list[str]:
    """The policies named in `A,B,...` or `all`, each once; `exclusive` first, since others are compared with it.

    Raises:
        UsageError: one is unknown, or none is named.
    """
    from cotenant.scheduling import policies as registered

    names = (
        list(registered.policies()) if text == "all" else [name for part in text.split(",") if (name := part.strip())]
    )
    if not names:
        raise UsageError("no policy given", hint="write e.g. `--policies exclusive,most-memory`, or `all`")
    for name in names:
        registered.options(name)  # raises for an unknown one before anything runs
    return list(dict.fromkeys([*(name for name in names if name == "exclusive"), *names]))


def parse_overrun(text: str) -> OverrunAction:
    """An action on overruns.

    Raises:
        UsageError: there is no such action.
    """
    from cotenant.scheduling.overrun_watch import OverrunAction

    actions: dict[str, OverrunAction] = {action: action for action in get_args(OverrunAction)}
    if text not in actions:
        raise UsageError(f"must be one of {', '.join(actions)}, got `{shortened(text)}`")
    return actions[text]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The jobs that are replayed."""

    SECTION = "Trace"

    trace: str | None = option("--trace", metavar="NAME|PATH", help="A trace of the package (see `--list`), or a file.")
    from_journal: Path | None = option(
        "--from-journal", type=PATH, metavar="PATH", help="Replay the jobs of a daemon's journal."
    )
    trace_format: str | None = option(
        "--trace-format", metavar="NAME", help="Format of the file, if it is not recognized."
    )
    group: str | None = option("--group", metavar="NAME", help="Only the jobs of this user or virtual cluster.")
    head: int | None = option("--head", type=integer(minimum=1), metavar="N", help="Only the first N jobs.")
    sample_window: int | None = option(
        "--sample-window",
        type=integer(minimum=2),
        metavar="N",
        help="Only the N consecutive jobs that represent the trace best.",
    )
    arrivals: Path | None = option(
        "--arrivals", type=PATH, metavar="PATH", help="Replace the jobs' submission times by those in this file."
    )
    arrival_scale: float = option(
        "--arrival-scale",
        type=number(),
        default=1.0,
        metavar="X",
        help="Scale inter-arrival times by X; 0.5 doubles the load.",
    )
    repeat: int = option("--repeat", type=integer(minimum=1), default=1, metavar="N", help="Submit every job N times.")

    def load(self, seed: int) -> Trace:
        """The trace, transformed as wanted, with a workload for every job.

        Raises:
            UsageError: no trace is named, or two are, or it cannot be read.
        """
        from cotenant.sim.traces import transforms
        from cotenant.sim.traces.arrivals import read_arrivals

        trace = self._read()
        if self.group is not None:
            trace = transforms.of_user(trace, self.group)
        if self.head is not None:
            trace = transforms.first_jobs(trace, self.head)
        if self.sample_window is not None:
            trace = transforms.window(trace, self.sample_window)
        if self.arrivals is not None:
            trace = transforms.onto_arrivals(trace, read_arrivals(self.arrivals, seed=seed), seed=seed)
        if self.arrival_scale != 1.0:
            trace = transforms.in_time(trace, self.arrival_scale)
        if not trace.has_profiles:
            trace = transforms.assign(trace, seed=seed)
        return transforms.repeated(trace, self.repeat, seed=seed) if self.repeat > 1 else trace

    def _read(self) -> Trace:
        from cotenant.sim import traces
        from cotenant.sim.traces import journal

        if (self.trace is None) == (self.from_journal is None):
            raise UsageError(
                "give exactly one of `--trace` and `--from-journal`", hint="e.g. `--trace t1`; see `--list`"
            )
        if self.from_journal is None:
            return traces.load(self.trace or "", format=self.trace_format)
        try:
            return journal.read(self.from_journal)
        except UsageError as error:
            raise UsageError(f"`--from-journal`: {error.message}", hint=error.hint) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """The policies that are compared, and how they learn of memory."""

    SECTION = "Policies"

    names: Sequence[str] | None = option(
        "--policies",
        type=Parsed("policies", parse_policies),
        metavar="A,B,...",
        shell_complete=complete_policies,
        help="Policies to compare, or `all`.  [default: exclusive,most-memory]",
    )
    texts: Sequence[str] = option(
        "-o",
        "--policy-option",
        default=(),
        multiple=True,
        show_default=False,
        metavar="POLICY.KEY=VALUE",
        help="Option of a policy; may be repeated.",
    )
    estimator: str = option(
        "--estimator", default="oracle", metavar="NAME", help="Source of memory estimates; see `--list`."
    )
    max_slowdown: float | None = option(
        "--max-slowdown", type=number(minimum=1), metavar="X", help="Slowdown that every job accepts, at least 1."
    )

    overrun: OverrunAction = option(
        "--overrun",
        type=Parsed("action", parse_overrun),
        default="report",
        metavar="report|pause|stop",
        help="What is done about jobs that outgrow their promise while neighbors miss memory, as by the daemon.",
    )

    def apply(self, config: SimulationConfig) -> SimulationConfig:
        """`config` with what the policies do about overruns."""
        return replace(config, overrun=replace(config.overrun, action=self.overrun))

    def settings(self, chosen: Sequence[str] | None) -> dict[str, dict[str, object]]:
        """`carma.smact_limit=0.7` as {policy: {key: value}}; values as in TOML, or else text.

        Raises:
            UsageError: a text is not such an option, or its policy is not `chosen`.
        """
        from cotenant.scheduling import policies as registered

        settings: dict[str, dict[str, object]] = {}
        for text in self.texts:
            name, equals, value = text.partition("=")
            policy, dot, key = name.partition(".")
            if not (equals and dot and key and value):
                raise UsageError(
                    f"`--policy-option`: must be POLICY.KEY=VALUE, got `{text}`",
                    hint="write e.g. `most-memory.smact_limit=0.7`",
                )
            registered.options(policy)
            if chosen is not None and policy not in chosen:
                raise UsageError(
                    f"`--policy-option`: `{text}` is for a policy that does not run",
                    hint=f"add `{policy}` to --policies",
                )
            settings.setdefault(policy, {})[key] = _value(value)
        for policy, given in settings.items():
            registered.create(policy, given)
        return settings


def _value(text: str) -> object:
    words: Mapping[str, object] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The simulated GPUs, and what is not known of real ones."""

    SECTION = "Cluster"

    gpus: str | None = option(
        "--gpus",
        metavar="GPUS",
        help="e.g. `2*8xV100-32GB`; MIG profiles follow a slash.  [default: 4xA100-40GB; of `philly` 400]",
    )
    reference_gpu: str | None = option(
        "--reference-gpu",
        metavar="TYPE",
        shell_complete=complete_gpu_names,
        help="GPU model that the trace's run times are from.  [default: the first of `--gpus`]",
    )
    cross_node_speed: float = option(
        "--cross-node-speed",
        type=number(),
        default=1.0,
        metavar="X",
        help="Relative speed of a job on GPUs of several servers, 0..1.",
    )
    sensitivity: float = option(
        "--sensitivity",
        type=number(),
        default=0.0,
        metavar="SD",
        help="Standard deviation of hidden differences in how much jobs slow down beside others.",
    )
    seed: int = option("--seed", type=integer(minimum=0), default=0, metavar="N", help="Random seed.")

    def config(self, *, record: bool) -> SimulationConfig:
        """The configuration of one run; `record`: keep what every GPU did."""
        from cotenant.sim.engine.config import SimulationConfig

        return SimulationConfig(
            seed=self.seed,
            sensitivity_sd=self.sensitivity,
            cross_node_speed=self.cross_node_speed,
            reference_gpu=self.reference_gpu,
            record=record,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceOptions:
    """Time slices and moves: jobs that give way to others before they are done."""

    SECTION = "Time slices and moves"

    time_slice_s: float | None = option(
        "--time-slice",
        type=Parsed("duration", parse_duration),
        metavar="TIME",
        help="After TIME, if others wait, every job is stopped and queued last.",
    )
    notice_s: float = option(
        "--slice-notice",
        type=Parsed("duration", parse_duration),
        default="00:10:00",
        metavar="TIME",
        help="The signal comes this long before the end of a slice; at most half of it.",
    )
    no_checkpoints: bool = flag("--no-checkpoints", help="A job whose slice is over starts again from its beginning.")
    movable: float = option(
        "--movable",
        type=number(minimum=0, maximum=1),
        default=0.0,
        metavar="SHARE",
        help="Share of the jobs that save their state and can be moved, 0..1; `marginal-gain` moves them.",
    )
    move_cost_s: float = option(
        "--move-cost",
        type=Parsed("duration", parse_duration),
        default="00:01:00",
        metavar="TIME",
        help="What a move takes: half of it to save, half to start again.",
    )
    repartition_s: float | None = option(
        "--repartition",
        type=Parsed("duration", parse_duration),
        metavar="TIME",
        help="Empty GPUs in MIG mode get other instances when the queue gains by it; TIME is what that takes.",
    )

    def apply(self, config: SimulationConfig) -> SimulationConfig:
        """`config` with these slices and moves.

        Raises:
            UsageError: `--no-checkpoints` without `--time-slice`.
        """
        part_s = self.move_cost_s / 2
        config = replace(config, movable_share=self.movable, save_s=part_s, startup_s=part_s)
        if self.repartition_s is not None:
            from cotenant.scheduling.repartition import RepartitionRule

            config = replace(config, repartition=RepartitionRule(cost_s=self.repartition_s))
        if self.time_slice_s is None:
            if self.no_checkpoints:
                raise UsageError("`--no-checkpoints` needs `--time-slice`", hint="add e.g. `--time-slice 12:00:00`")
            return config
        return replace(
            config,
            time_slice_s=self.time_slice_s,
            time_slice_notice_s=self.notice_s,
            slice_checkpoints=not self.no_checkpoints,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastOptions:
    """A question to a running daemon in place of a trace."""

    SECTION = "Forecast"

    forecast: bool = flag("--forecast", help="When will the pending jobs start, now and with one more GPU?")
    default_runtime_s: float = option(
        "--default-runtime",
        type=Parsed("duration", parse_duration),
        default="01:00:00",
        metavar="TIME",
        help="Run time of jobs without history and time limit.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultOptions:
    """What is computed and written of the runs."""

    SECTION = "Results"

    bootstrap: int = option(
        "--bootstrap",
        type=integer(minimum=0),
        default=0,
        metavar="N",
        help="Also run N resamples of the jobs, for confidence intervals.",
    )
    report: Path | None = option("--report", type=PATH, metavar="PATH", help="Write an HTML report.")
    save_jobs: Path | None = option(
        "--save-jobs", type=PATH, metavar="PATH", help="Write start, end and outcome of each job, as CSV."
    )

    def check_files(self) -> None:
        """Refuse files that cannot be written, before anything runs."""
        for path in (self.report, self.save_jobs):
            if path is not None:
                output_files.check(path)
