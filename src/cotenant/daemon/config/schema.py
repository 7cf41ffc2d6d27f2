"""Every key of the configuration: its section, type, default, and what it does, in one place.

Validation, `cotenant config` and the reference page are made from it.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cotenant.core.errors import UsageError
from cotenant.scheduling.config import Quota

NO_DEFAULT = dataclasses.MISSING


def key(
    default: Any = NO_DEFAULT, text: str = "", *, factory: Callable[[], Any] | None = None, above_zero: bool = False
) -> Any:
    """Declare a key with its default, or a factory of it, and its help text. `above_zero`: 0 and less are refused."""
    metadata = {"help": text, "above_zero": above_zero}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSection:
    """`[daemon]`: the process."""

    state_dir: str | None = key(None, "folder of the journal, the logs and the attempts; none: the XDG state folder")
    tick_s: float = key(1.0, "seconds between two samples of the GPUs", above_zero=True)
    fsync: Literal["full", "normal"] = key(
        "full", "`full` survives a power cut; `normal` may lose the newest events in one, and submits faster"
    )
    log_level: Literal["debug", "info", "warning", "error"] = key("info", "least severe messages that are logged")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySection:
    """`[policy]`: how jobs are placed."""

    name: str = key("most-memory", "a policy; `cotenant simulate --list` prints them")
    options: Mapping[str, object] = key(factory=dict, text="options of the policy, as `[policy.options]`")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusSection:
    """`[gpus]`: where GPUs are read."""

    backend: str = key("auto", "`auto`, `nvml`, `simulated`, or a GPU backend of another package")
    simulate: str | None = key(None, "a simulated server instead of real GPUs, e.g. `4xA100-40GB`")
    time_scale: float = key(1.0, "simulated seconds per second on a simulated server", above_zero=True)
    visible: str | None = key(
        None, "GPUs to use, as CUDA_VISIBLE_DEVICES names them: `0,1`, or UUIDs; none: all; the others are not touched"
    )
    fake_cuda: bool = key(default=True, text="on a simulated server, torch in jobs sees its GPUs as fake CUDA devices")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSection:
    """`[engine]`: what launches attempts."""

    name: str = key("local", "`local`, or an engine of another package")
    cuda_checkpoint: str | None = key(
        None,
        'with `overrun = "pause"`: the program `cuda-checkpoint` of driver 570 or newer, which brings device memory of '
        "paused attempts to host memory; unproven: tested with a stand-in only; none: they keep it",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsSection:
    """`[hosts]`: GPUs of other hosts instead of this one's. The state folder must be on a file system that all see."""

    agents: Mapping[str, object] = key(
        factory=dict,
        text='what starts a program on each host, as `[hosts.agents]` with e.g. `n1 = "ssh n1"`; empty text: on this '
        "machine; none: no hosts",
    )

    def launchers(self) -> dict[str, list[str]]:
        """The words of each host's command.

        Raises:
            UsageError: a name is no host's, or a command is no text.
        """
        found: dict[str, list[str]] = {}
        for host, command in self.agents.items():
            if not host.isascii() or not host.replace("-", "").replace(".", "").replace("_", "").isalnum():
                raise UsageError(f"`hosts.agents` has `{host}`, wanted letters, digits, dots and dashes")
            try:
                found[host] = shlex.split(command) if isinstance(command, str) else []
            except ValueError as error:
                raise UsageError(f"`hosts.agents.{host}` is no command: {error}") from error
            if not isinstance(command, str):
                raise UsageError(f"`hosts.agents.{host}` is no text, wanted e.g. `ssh {host}`")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotSection:
    """`[pilot]`: allocations of Slurm or Ray, requested while jobs wait. Nodes must see the state folder."""

    enabled: bool = key(default=False, text="request allocations, one node each, and run jobs there")
    sbatch: str = key("", "options of every allocation, e.g. `-p gpu -A lab --gres=gpu:2 -t 4:00:00`")
    ray: Mapping[str, object] = key(
        factory=dict,
        text="allocations of Ray instead, as `[pilot.ray]` with e.g. `num_gpus = 2`; also `address`, and `num_cpus`, "
        "`memory`, `accelerator_type` and `resources`, as in Ray's `options()`; none: Slurm",
    )
    launcher: str = key("", "words in front of the agent's own on the node, e.g. `apptainer exec --nv IMAGE`")
    min_allocations: int = key(0, "allocations that are held even while no job waits")
    max_allocations: int = key(1, "allocations at the same time", above_zero=True)
    backlog: int = key(1, "of these, how many may be pending at once", above_zero=True)
    idle_s: float = key(300.0, "an allocation without jobs is given back after it", above_zero=True)
    poll_s: float = key(10.0, "seconds between two questions to Slurm or Ray", above_zero=True)
    retry_s: float = key(
        60.0, "pause after a refusal, doubled after the next; the third one pauses for good", above_zero=True
    )

    def launcher_words(self) -> list[str]:
        """The words of the launcher.

        Raises:
            UsageError: a quote is open.
        """
        try:
            return shlex.split(self.launcher)
        except ValueError as error:
            raise UsageError(f"`pilot.launcher` is no command: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatesSection:
    """`[estimates]`: memory estimates of jobs that declare none."""

    enabled: bool = key(default=True, text="estimate; otherwise a job that declares no memory runs alone on its GPU")
    estimator: str = key("traced", "estimator of jobs that name none")
    gpu: str | None = key(None, "GPU to estimate for, e.g. `A100-40GB`; none: the largest of the server")
    timeout_s: float = key(120.0, "longest time for one estimate", above_zero=True)
    concurrency: int | None = key(
        None, "estimates made at the same time; none: one for 8 CPU cores, at least 2, at most 8", above_zero=True
    )
    idle_timeout_s: float = key(
        600.0,
        "how long an idle estimator process stays, with torch loaded, for the next job of its user",
        above_zero=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingSection:
    """`[scheduling]`: what holds for every policy."""

    stale_after_s: float = key(5.0, "a GPU whose newest sample is older admits no job", above_zero=True)
    window_s: float = key(30.0, "length of the window of samples that policies see", above_zero=True)
    stop_grace_s: float = key(10.0, "time between SIGTERM and SIGKILL for a stopped attempt")
    time_slice_s: float | None = key(
        None,
        "longest time slice of every job: after it, if others wait, a job checkpoints and is requeued last; none: only "
        "jobs that ask for one",
        above_zero=True,
    )
    time_slice_notice_s: float = key(
        0.0, "SIGTERM comes this long before the end of a time slice, SIGKILL at its end; at most half of the slice"
    )
    time_slice_grace_s: float = key(
        120.0, "without a notice: time between SIGTERM at the end of a time slice and SIGKILL"
    )
    overrun: Literal["report", "pause", "stop"] = key(
        "report",
        "action on an attempt that exceeds its promise while neighbors miss memory of theirs: `report` it when one "
        "fails, `pause` it until all promises fit, or `stop` it and retry it with what it held",
    )
    overrun_margin: float = key(0.1, "share of its promise that an attempt may exceed before `pause` or `stop`")
    overrun_samples: int = key(3, "samples in a row that must show it", above_zero=True)
    aging_per_hour: float = key(0.0, "points that the priority of a waiting job gains per hour")
    interference: str | None = key(
        None,
        "table that `cotenant study collocate --install` wrote; none: `interference.json` beside the configuration "
        "file, if there is one",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleSection:
    """`[idle]`: jobs that hold GPUs and compute nothing. Durations count the time of a simulated server."""

    action: Literal["off", "notify", "park", "cancel"] = key(
        "notify",
        "`notify` the user by `show`, `ls`, `events`, the page and `--notify`; `park`: also stop the job and hold it "
        "until its user releases it; `cancel` it; `off`: do not look for idle jobs",
    )
    max_activity: float = key(
        0.01, "SM activity, or utilization where that is not read, below which a GPU is idle; 0 to 1", above_zero=True
    )
    after_s: float = key(1800.0, "an attempt is idle after so long in a row on all its GPUs", above_zero=True)
    warmup_s: float = key(600.0, "time after its start in which an attempt is not judged")
    grace_s: float = key(900.0, "time between the notice to the user and parking or cancelling")


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsSection:
    """`[mps]`: CUDA Multi-Process Service."""

    thread_percent: float | None = key(
        None, "share of the SMs that the kernels of one client may use, in percent; none: all", above_zero=True
    )
    allow_job_requests: bool = key(
        default=True, text="jobs that ask for MPS get it, whatever the policy uses otherwise"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MigSection:
    """`[mig]`: layouts of MIG instances. Durations count the time of a simulated server."""

    repartition: bool = key(
        default=False,
        text="give an empty GPU in MIG mode other instances when waiting jobs gain by it; needs root; unproven: tested "
        "with a stand-in for the driver only",
    )
    min_gain: float = key(0.3, "least gain over the present layout, in jobs' worth of speed")
    cost_s: float = key(15.0, "how long a GPU is assumed to run nothing while it is repartitioned")
    period_s: float = key(300.0, "least time between two repartitions of a GPU; doubled after each failure in a row")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSection:
    """`[metrics]`: Prometheus."""

    listen: str | None = key(None, "`HOST:PORT` to serve metrics on, e.g. `127.0.0.1:9877`; none: on the socket only")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSection:
    """`[access]`: who may use the daemon."""

    users: Literal["own", "all"] = key(
        "own", "`own`: the daemon's user and root; `all`: every user of the machine, with a daemon that root runs"
    )
    admins: str = key("", "users, or uids, who may see and change all jobs besides root; separated by commas")
    connections_per_user: int = key(
        256, "connections of one user to the socket at the same time; root has no limit", above_zero=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotasSection:
    """`[quotas]`: limits per user; none is no limit."""

    max_running: int | None = key(None, "running jobs")
    gpus: int | None = key(None, "GPUs of running jobs; a shared GPU counts once for each job")
    max_unfinished: int | None = key(None, "jobs that are not done; submitting more is refused")
    users: Mapping[str, object] = key(
        factory=dict, text="other limits for one user, e.g. `[quotas.users.ann]` with `max_running = 10`"
    )

    def of_all(self) -> Quota:
        """The limits of users that are not named."""
        return Quota(max_running=self.max_running, gpus=self.gpus, max_unfinished=self.max_unfinished)

    def of_users(self) -> dict[str, Quota]:
        """The limits of users that are named.

        Raises:
            UsageError: one is no table of whole numbers from 0.
        """
        return {name: self._quota(name, table) for name, table in self.users.items()}

    def _quota(self, name: str, table: object) -> Quota:
        known = {limit.name for limit in dataclasses.fields(Quota)}
        if not isinstance(table, Mapping) or not table.keys() <= known:
            raise UsageError(f"`quotas.users.{name}` must be a table of {', '.join(sorted(known))}")
        for limit, value in table.items():
            if type(value) is not int or value < 0:
                raise UsageError(f"`quotas.users.{name}.{limit}` is {value!r}, wanted a whole number from 0")
        return dataclasses.replace(self.of_all(), **table)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsSection:
    """`[limits]`: what one client or one user may store."""

    request_mib: float = key(64.0, "length of one request", above_zero=True)
    user_mib: float = key(
        256.0, "commands and environments of one user's unfinished jobs; an array counts once", above_zero=True
    )
    journal_mib: float = key(
        16384.0,
        "size of the journal, from which on no job is accepted until `cotenant prune` makes room",
        above_zero=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSection:
    """`[output]`: files that jobs write to in the daemon's folder. Those that a job names itself have no limit here."""

    max_mib: float | None = key(
        1024.0,
        "size of one file with its rotated half; beyond half of it the file is rotated to FILE.1",
        above_zero=True,
    )
    max_user_mib: float | None = key(
        None,
        "all such files of one user: each file of a new attempt gets at most a sixteenth of what is left, and a user "
        "with nothing left is refused further jobs; none: a tenth of the file system",
        above_zero=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationsSection:
    """`[notifications]`: what jobs ask for with `--notify`."""

    enabled: bool = key(
        default=False, text="run commands as the jobs' users, and send HTTP messages, when jobs are done or idle"
    )
    timeout_s: float = key(30.0, "longest time for one notification", above_zero=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpSection:
    """`[tcp]`: the API on the network, for holders of tokens."""

    listen: str | None = key(None, "`ADDRESS:PORT`, e.g. `127.0.0.1:7411`; none: not on the network")
    tls_cert: str | None = key(None, "certificate in PEM; required with `tls_key` on addresses that others reach")
    tls_key: str | None = key(None, "private key in PEM")
    plaintext: bool = key(default=False, text="allow an address that others reach without TLS")
    connections: int = key(256, "connections open at the same time", above_zero=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSection:
    """`[web]`: the web page, for holders of tokens. Needs `cotenant[web]`."""

    listen: str | None = key(None, "`ADDRESS:PORT`, e.g. `127.0.0.1:7412`; none: no page")
    tls_cert: str | None = key(None, "certificate in PEM; required with `tls_key` on addresses that others reach")
    tls_key: str | None = key(None, "private key in PEM")
    plaintext: bool = key(default=False, text="allow an address that others reach without TLS")
    connections: int = key(512, "connections open at the same time; each open page holds one", above_zero=True)
    hosts: str = key("", "names of this machine that browsers may use, besides its host name; separated by commas")
    read_only: bool = key(default=False, text="show, but submit and change nothing")
    session_s: float = key(12 * 3600.0, "how long a login lasts", above_zero=True)


ListenerSection = TcpSection | WebSection
"""The sections that open a TCP socket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole configuration."""

    daemon: DaemonSection = field(default_factory=DaemonSection)
    policy: PolicySection = field(default_factory=PolicySection)
    gpus: GpusSection = field(default_factory=GpusSection)
    engine: EngineSection = field(default_factory=EngineSection)
    hosts: HostsSection = field(default_factory=HostsSection)
    pilot: PilotSection = field(default_factory=PilotSection)
    estimates: EstimatesSection = field(default_factory=EstimatesSection)
    scheduling: SchedulingSection = field(default_factory=SchedulingSection)
    idle: IdleSection = field(default_factory=IdleSection)
    metrics: MetricsSection = field(default_factory=MetricsSection)
    mps: MpsSection = field(default_factory=MpsSection)
    mig: MigSection = field(default_factory=MigSection)
    access: AccessSection = field(default_factory=AccessSection)
    quotas: QuotasSection = field(default_factory=QuotasSection)
    limits: LimitsSection = field(default_factory=LimitsSection)
    output: OutputSection = field(default_factory=OutputSection)
    notifications: NotificationsSection = field(default_factory=NotificationsSection)
    tcp: TcpSection = field(default_factory=TcpSection)
    web: WebSection = field(default_factory=WebSection)
