"""The sections of the configuration and their defaults; `config.py` reads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from cotenant.core.errors import UsageError
from cotenant.scheduling.config import Quota


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSection:
    """`[daemon]`.

    Attributes:
        state_dir: journal, logs and attempts; None for the XDG state folder.
        tick_s: time between two readings of the GPUs.
        fsync: `full` survives a power cut; `normal` may lose the newest events in one, and submits faster.
    """

    state_dir: str | None = None
    tick_s: float = 1.0
    fsync: Literal["full", "normal"] = "full"
    log_level: Literal["debug", "info", "warning", "error"] = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySection:
    """`[policy]`: its name, and options that depend on it under `[policy.options]`."""

    name: str = "most-memory"
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusSection:
    """`[gpus]`.

    Attributes:
        backend: what reads the GPUs: `auto`, `nvml`, `simulated`, or a backend of another package.
        simulate: a simulated server, e.g. `4xA100-40GB`, or None.
        time_scale: virtual seconds in a second on the simulated server.
        live: on the simulated server, jobs that use torch find its cards: fake CUDA tensors that fill them.
    """

    backend: str = "auto"
    simulate: str | None = None
    time_scale: float = 1.0
    fake_cuda: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSection:
    """`[engine]`.

    Attributes:
        name: what launches attempts: `local`, or an engine of another package.
    """

    name: str = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatesSection:
    """`[estimates]`.

    Attributes:
        estimator: asked for jobs that declare no memory and name no other.
        gpu: device profile to estimate for; None for the GPU that the server has.
        concurrency: estimates made at the same time.
        idle_timeout_s: how long an idle estimator stays loaded, with torch, for the next job of the same user.
    """

    enabled: bool = True
    estimator: str = "traced"
    gpu: str | None = None
    timeout_s: float = 120.0
    concurrency: int = 1
    idle_timeout_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingSection:
    """`[scheduling]`.

    Attributes:
        stale_after_s: a reading of a GPU that is older admits nothing.
        window_s: readings kept for policies.
        stop_grace_s: from the polite signal to the end of a job's process tree.
        time_slice_grace_s: the same for a job whose time slot is over: the time it has to save its state.
        aging_per_hour: points that the priority of a waiting job grows by in an hour; 0 is no ageing.
    """

    stale_after_s: float = 5.0
    window_s: float = 30.0
    stop_grace_s: float = 10.0
    time_slice_grace_s: float = 120.0
    aging_per_hour: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsSection:
    """`[mps]`, for policies that share GPUs by MPS, and for jobs that ask for it.

    Attributes:
        allow_job_requests: jobs that ask for it become clients also where the policy shares otherwise.
        thread_percent: share of the SMs that the kernels of one job may use, in percent as NVIDIA counts it; None: all.
    """

    thread_percent: float | None = None
    allow_job_requests: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSection:
    """`[metrics]`.

    Attributes:
        listen: `HOST:PORT` to serve Prometheus on, e.g. `127.0.0.1:9877`; None serves it on the daemon's socket only.
    """

    listen: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSection:
    """`[access]`.

    Attributes:
        users: `own`: the daemon's user alone, and root. `all`: everybody on this machine, each with jobs of their own
            that run as them; the daemon must be root's then.
        admins: names or uids, separated by commas, of those who may see and change all jobs besides root.
    """

    users: Literal["own", "all"] = "own"
    admins: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotasSection:
    """`[quotas]`: what each user may have at once; None is no limit.

    Attributes:
        max_running: jobs that run.
        gpus: GPUs of these, shared ones counted once for each.
        max_unfinished: jobs that are not over.
        users: other numbers for some users, e.g. `[quotas.users.ann]` with `max_running = 10`.
    """

    max_running: int | None = None
    gpus: int | None = None
    max_unfinished: int | None = None
    users: Mapping[str, object] = field(default_factory=dict)

    def of_all(self) -> Quota:
        """What holds for users that are not named."""
        return Quota(max_running=self.max_running, gpus=self.gpus, max_unfinished=self.max_unfinished)

    def of_users(self) -> dict[str, Quota]:
        """What holds for those that are.

        Raises:
            UsageError: not a table of whole numbers from 0.
        """
        return {name: self._quota(name, told) for name, told in self.users.items()}

    def _quota(self, name: str, told: object) -> Quota:
        known = {each.name for each in dataclasses.fields(Quota)}
        if not isinstance(told, Mapping) or not told.keys() <= known:
            raise UsageError(f"`quotas.users.{name}` must be a table of {', '.join(sorted(known))}")
        for key, value in told.items():
            if type(value) is not int or value < 0:
                raise UsageError(f"`quotas.users.{name}.{key}` is {value!r}, wanted a whole number from 0")
        return dataclasses.replace(self.of_all(), **told)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationsSection:
    """`[notifications]`.

    Attributes:
        enabled: do what jobs ask for with `--notify`: run a command as their user, or send a message.
        timeout_s: longest that one may take.
    """

    enabled: bool = False
    timeout_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpSection:
    """`[tcp]`: the daemon on the network, for those who show a token.

    Attributes:
        listen: `ADDRESS:PORT`, e.g. `127.0.0.1:7411`; None is nowhere.
        tls_cert, tls_key: files in PEM; with both, TLS is spoken. An address that others reach needs it.
        plaintext: listen there without TLS all the same.
        connections: open at once, at most.
    """

    listen: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    plaintext: bool = False
    connections: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All of it."""

    daemon: DaemonSection = field(default_factory=DaemonSection)
    policy: PolicySection = field(default_factory=PolicySection)
    gpus: GpusSection = field(default_factory=GpusSection)
    engine: EngineSection = field(default_factory=EngineSection)
    estimates: EstimatesSection = field(default_factory=EstimatesSection)
    scheduling: SchedulingSection = field(default_factory=SchedulingSection)
    metrics: MetricsSection = field(default_factory=MetricsSection)
    mps: MpsSection = field(default_factory=MpsSection)
    access: AccessSection = field(default_factory=AccessSection)
    quotas: QuotasSection = field(default_factory=QuotasSection)
    notifications: NotificationsSection = field(default_factory=NotificationsSection)
    tcp: TcpSection = field(default_factory=TcpSection)
