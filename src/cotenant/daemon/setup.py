"""Builds what a configuration describes: folders, access policy, GPUs, attempt services, policy options."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import cotenant
from cotenant import gpus
from cotenant.core.errors import BackendError, UsageError
from cotenant.core.ports import GpuBackend
from cotenant.core.units import MiB
from cotenant.daemon.auth.impersonation import why_root_only
from cotenant.daemon.auth.permissions import AccessPolicy, admin_uids
from cotenant.daemon.config import paths
from cotenant.daemon.config.schema import Config, OutputSection
from cotenant.daemon.services.base import AttemptService
from cotenant.daemon.services.mps import MpsService
from cotenant.daemon.services.mps_monitor import MpsMonitor
from cotenant.daemon.services.notifier import Notifier
from cotenant.daemon.services.progress import ProgressService
from cotenant.daemon.services.simulated_gpus import SimulatedGpuService
from cotenant.engines.output_budget import OutputBudget
from cotenant.gpus.mig_control import MigControl
from cotenant.gpus.mps import MpsServers
from cotenant.gpus.visible import VisibleGpus
from cotenant.hosts.allocations import ALLOCATION_ID, AllocationSource
from cotenant.hosts.engine import HostsEngine
from cotenant.hosts.pilot import Pilot
from cotenant.hosts.pilot_decision import PilotLimits
from cotenant.scheduling import policies
from cotenant.scheduling.placement.orders import aged
from cotenant.scheduling.placement.policy import Policy
from cotenant.scheduling.placement.ranked import Ranked
from cotenant.simserver.backend import SimulatedServer

logger = logging.getLogger(__name__)

SIMULATED_DIR = "simulated"
USER_SHARE = 0.1
"""Of the file system with the state folder, for the output files of one user, where the configuration has no number."""
FAKE_CUDA_SITE = Path(cotenant.__file__).parent / "simserver" / "torch" / "site"
"""On the Python path of a job, this folder gives torch fake CUDA devices of the simulated server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSet:
    """The attempt services of a configuration.

    Attributes:
        all: in the order in which they are called.
        mps_unavailable_reason: why jobs that ask for MPS cannot have it, or None.
    """

    all: tuple[AttemptService, ...]
    mps_unavailable_reason: str | None


def output_budget(settings: OutputSection, state_dir: Path) -> OutputBudget:
    """The limits of output files in the folder of the daemon."""
    if settings.max_user_mib is not None:
        max_user_bytes = int(settings.max_user_mib * MiB)
    else:
        max_user_bytes = int(shutil.disk_usage(state_dir).total * USER_SHARE)
    max_file_bytes = None if settings.max_mib is None else int(settings.max_mib * MiB)
    return OutputBudget(max_file_bytes, max_user_bytes)


def services_of(config: Config, sim_env: dict[str, str], run_dir: Path) -> ServiceSet:
    """The services that accompany attempts; `sim_env` is empty on real GPUs."""
    settings = config.notifications
    if config.hosts.agents or config.pilot.enabled:
        # The others work in this machine's folders and look at its processes.
        notifier = Notifier(enabled=settings.enabled, timeout_s=settings.timeout_s)
        return ServiceSet(all=(notifier,), mps_unavailable_reason=_mps_reason(config, "its GPUs are on other hosts"))
    common = (
        ProgressService(run_dir / "progress"),
        Notifier(enabled=settings.enabled, timeout_s=settings.timeout_s),
    )
    if sim_env:
        site = FAKE_CUDA_SITE if config.gpus.fake_cuda else None
        simulated = SimulatedGpuService(sim_env, site=site)
        return ServiceSet(
            all=(simulated, *common), mps_unavailable_reason=_mps_reason(config, "its GPUs are simulated")
        )
    mps = MpsService(MpsMonitor(MpsServers(run_dir / "mps")), thread_percent=config.mps.thread_percent)
    return ServiceSet(all=(*common, mps), mps_unavailable_reason=_mps_reason(config, mps.unavailable_reason))


def _mps_reason(config: Config, why: str | None) -> str | None:
    if not config.mps.allow_job_requests:
        return "its configuration leaves MPS to the policy: [mps] allow_job_requests"
    return why


def state_folder(config: Config, env: Mapping[str, str] = os.environ) -> Path:
    """The folder of the journal, the attempts and their output."""
    named = config.daemon.state_dir
    if named is not None:
        return Path(named).absolute()
    return paths.SYSTEM_STATE if config.access.users == "all" else paths.state_dir(env)


def state_mode(config: Config) -> int:
    """Mode of that folder. Jobs of all users open simulated GPUs in it, also while a daemon starts."""
    simulated = config.gpus.simulate is not None or config.gpus.backend == "simulated"
    return 0o711 if config.access.users == "all" and simulated else 0o700


def access_of(config: Config) -> AccessPolicy:
    """The access policy.

    Raises:
        UsageError: it serves all users without running as root, or an admin does not exist.
    """
    many = config.access.users == "all"
    if many and os.geteuid() != 0:
        raise UsageError("only root's daemon can serve all users", hint="start it as root, or without --all-users")
    alone = why_root_only() if many else None
    if alone is not None:
        fields = {"why": alone, "hint": "install cotenant where every user can read, e.g. below /opt"}
        logger.warning(
            "other users cannot run this Python: they get no estimates, log files of their own or notifications",
            extra={"fields": fields},
        )
    return AccessPolicy(own_uid=os.getuid(), many=many, admins=admin_uids(admin_names(config)))


def admin_names(config: Config) -> list[str]:
    """The names in `access.admins`."""
    return [part.strip() for part in config.access.admins.split(",") if part.strip()]


def open_hosts(config: Config, launchers: Mapping[str, Sequence[str]], state_dir: Path) -> HostsEngine:
    """The engine of other hosts, whose agents write output as the configuration allows.

    Raises:
        BackendError: its folders cannot be made.
    """
    agent = _agent_words(config, state_dir)
    commands = {host: [*launcher, *agent] for host, launcher in launchers.items()}
    return HostsEngine(state_dir, commands, tick_s=config.daemon.tick_s)


def _agent_words(config: Config, state_dir: Path) -> list[str]:
    budget = output_budget(config.output, state_dir)
    agent = [sys.executable, "-m", "cotenant.hosts.agent", "--state-dir", str(state_dir.resolve())]
    agent += ["--tick-s", str(config.daemon.tick_s)]
    limits = {"--max-file-bytes": budget.max_file_bytes, "--max-user-bytes": budget.max_user_bytes}
    return agent + [word for name, limit in limits.items() if limit is not None for word in (name, str(limit))]


def pilot_folder(state_dir: Path) -> Path:
    """The folder of a pilot's notes."""
    return state_dir.resolve() / "hosts" / "pilot"


def open_pilot(config: Config, engine: HostsEngine, source: AllocationSource, state_dir: Path) -> Pilot:
    """The pilot of a configuration, with the hosts of the allocations that an earlier daemon requested.

    Raises:
        BackendError: its notes cannot be read.
    """
    settings, folder = config.pilot, str(state_dir.resolve())
    keeper = [sys.executable, "-m", "cotenant.hosts.keeper", "--state-dir", folder]
    keeper += ["--host-suffix", f".{ALLOCATION_ID}", "--grace-s", str(config.scheduling.stop_grace_s)]
    return Pilot(
        engine,
        source,
        pilot_folder(state_dir),
        PilotLimits(
            min_allocations=settings.min_allocations,
            max_allocations=settings.max_allocations,
            backlog=settings.backlog,
            idle_s=settings.idle_s,
            retry_s=settings.retry_s,
        ),
        keeper=keeper,
        agent=[*settings.launcher_words(), *_agent_words(config, state_dir), "--allocated"],
        poll_s=settings.poll_s,
    )


def open_gpus(config: Config, state_dir: Path) -> tuple[GpuBackend, dict[str, str]]:
    """Open the GPU backend; returns it with the environment that jobs need to use its GPUs.

    Raises:
        BackendError, UsageError: it does not work here, or the configuration contradicts itself.
    """
    backend, env = _open_all_gpus(config, state_dir)
    if config.gpus.visible is None:
        return backend, env
    try:
        return VisibleGpus(backend, config.gpus.visible), env
    except BackendError:
        backend.close()
        raise


def _open_all_gpus(config: Config, state_dir: Path) -> tuple[GpuBackend, dict[str, str]]:
    settings = config.gpus
    folder = state_dir / SIMULATED_DIR
    if settings.simulate is None and settings.backend != "simulated":
        try:
            return gpus.create(settings.backend), {}
        except BackendError as error:
            raise BackendError(
                error.message, hint="try it without one: cotenant daemon --simulate 4xA100-40GB"
            ) from error
    if settings.backend == "nvml":
        raise UsageError("backend `nvml` cannot be simulated", hint="leave out one of --backend and --simulate")
    _simulated_server(folder, settings.simulate, settings.time_scale)
    state_dir.chmod(state_mode(config))  # whatever the umask was
    return gpus.create("simulated", gpus.BackendOptions(simulated_dir=folder)), {"COTENANT_SIM_SERVER": str(folder)}


def _simulated_server(folder: Path, gpus_text: str | None, time_scale: float) -> None:
    """Create the simulated server, or check that the existing one matches the configuration."""
    marker, earlier = folder / "requested.txt", folder / "asked.txt"  # the second one: of an earlier version
    if earlier.exists():
        marker = earlier
    if not marker.exists():
        if gpus_text is None:
            raise UsageError("no simulated GPUs are named", hint="add e.g. --simulate 4xA100-40GB")
        # An unfinished server of a daemon that was killed: the marker is written last, so no job has used it.
        shutil.rmtree(folder, ignore_errors=True)
        SimulatedServer.create(folder, gpus_text, time_scale=time_scale)
        marker.write_text(gpus_text)
        return
    was, scale = marker.read_text(), SimulatedServer.open(folder).time_scale
    if gpus_text not in (None, was) or scale != time_scale:
        raise UsageError(
            f"`{folder}` holds a simulated server `{was}`, time scale {scale:g}",
            hint="use that one, remove the folder, or choose another --state-dir",
        )


def mig_control_of(config: Config, backend: GpuBackend) -> MigControl | None:
    """Access to the MIG layouts of this machine; None if they are not to be changed.

    Raises:
        UsageError: they are to be changed, but the GPUs are read in a way that does not allow it.
    """
    if not config.mig.repartition:
        return None
    if config.gpus.visible is not None:
        raise UsageError("`mig.repartition` needs all GPUs, `gpus.visible` names some", hint="leave one of the two out")
    control: MigControl | None = getattr(backend, "mig", None)
    if control is None:
        raise UsageError(
            f"`mig.repartition` does not work with GPU backend `{backend.name}`", hint="use `nvml`, or simulated GPUs"
        )
    return control


def scaled_options(name: str, given: dict[str, object], time_scale: float) -> dict[str, object]:
    """Options of a policy, with durations divided by `time_scale`: they count the time of the simulated server."""
    if time_scale == 1.0:
        return given
    known = {**policies.options(name), **given}
    scaled = {
        key: value / time_scale
        for key, value in known.items()
        if key.endswith("_s") and isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    return {**given, **scaled}


def on_hosts(policy: Policy) -> Policy:
    """`policy` with the GPUs of each job on one host, where it is a composition."""
    return replace(policy, one_node=True) if isinstance(policy, Ranked) else policy


def with_aging(policy: Policy, points_per_hour: float) -> Policy:
    """`policy` with priorities that grow with waiting time.

    Raises:
        UsageError: the policy has an order of its own.
    """
    if points_per_hour == 0:
        return policy
    if not isinstance(policy, Ranked):
        raise UsageError(f"policy `{policy.name}` cannot age priorities", hint="remove scheduling.aging_per_hour")
    return replace(policy, order=aged(policy.order, points_per_hour))
