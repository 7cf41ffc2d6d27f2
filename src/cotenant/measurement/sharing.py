"""Sets up a way to share one GPU for a group of jobs, and undoes it, whatever happens in between."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cotenant import gpus
from cotenant.core.errors import BackendError, CotenantError
from cotenant.core.gpu import Gpu
from cotenant.gpus import mig
from cotenant.measurement.campaign import CampaignSetup
from cotenant.measurement.interrupts import deferred_signals
from cotenant.measurement.job_list import JobGroup

MPS_COMMAND = "nvidia-cuda-mps-control"
PIPE_FOLDER = "CUDA_MPS_PIPE_DIRECTORY"
SIMULATED_SHARING = "COTENANT_STUDY_SHARING"
"""How a job on a simulated GPU shares it: `time-sliced`, `mps` or `mig:PROFILE`."""


@contextlib.contextmanager
def open_sharing(group: JobGroup, setup: CampaignSetup) -> Iterator[Sequence[Mapping[str, str]]]:
    """The environment of each job of the group, for the duration of a `with` block.

    Without MPS, jobs get an empty pipe folder: with that of a server that runs already, they would be its clients.

    Raises:
        CotenantError: this GPU, driver or user cannot share so; nothing is changed.
    """
    if setup.is_simulated:
        yield [{SIMULATED_SHARING: way} for way in _simulated_ways(group)]
        return
    if group.way == "mps":
        with mps_server(setup) as env:
            limit = {} if group.detail == "" else {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": group.detail}
            yield [{**env, **limit}] * len(group.jobs)
        return
    no_mps = {PIPE_FOLDER: str((setup.out / "no-mps").resolve())}
    if group.way == "mig":
        if setup.watch is None:
            raise BackendError(f"MIG needs an NVIDIA driver: {setup.no_watch or 'none was found'}")
        with mig_instances(setup.watch.gpu, group.detail.split(",")) as uuids:
            # With fewer instances than jobs, jobs take turns: they share an instance's SMs and memory.
            yield [{**no_mps, "CUDA_VISIBLE_DEVICES": uuids[i % len(uuids)]} for i in range(len(group.jobs))]
    else:
        yield [no_mps] * len(group.jobs)


def _simulated_ways(group: JobGroup) -> list[str]:
    """How each job of the group shares a simulated GPU.

    Raises:
        BackendError: nothing says how fast jobs would be so.
    """
    if group.way != "mig":
        if group.detail:
            raise BackendError("limits of SMs under MPS are not simulated", hint="leave out the percentage")
        return [group.way] * len(group.jobs)
    profiles = group.detail.split(",")
    if "c." in group.detail or len(profiles) < len(group.jobs):
        raise BackendError("jobs that share a MIG instance are not simulated", hint="give each job an instance")
    return [f"mig:{profile}" for profile in profiles[: len(group.jobs)]]


@contextlib.contextmanager
def mps_server(setup: CampaignSetup) -> Iterator[dict[str, str]]:
    """A private MPS server for the duration of a `with` block; gives the environment of its clients.

    MPS servers of others are not touched: the pipe folder is our own. One that a killed study left there is ended.

    Raises:
        CotenantError: MPS is not installed, or does not start.
    """
    program = shutil.which(MPS_COMMAND)
    if program is None:
        raise CotenantError(f"no `{MPS_COMMAND}` on the PATH", hint="leave out MPS")
    folder = (setup.out / "mps").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    ours = {PIPE_FOLDER: str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    env = {**setup.plain_env(), **ours}
    try:
        with deferred_signals():
            code = _start_mps(program, env, folder)
            if code:
                _quit_mps(program, env)
                code = _start_mps(program, env, folder)
        if code:
            lines = (folder / "start.log").read_text(encoding="utf-8", errors="replace").split()
            said = f": {' '.join(lines)[:200]}" if lines else ""
            raise CotenantError(f"`{program} -d` ended with exit code {code}{said}", hint=f"see `{folder}`")
        yield ours
    finally:
        with deferred_signals():
            _quit_mps(program, env)


def _start_mps(program: str, env: Mapping[str, str], folder: Path) -> int:
    # The MPS daemon inherits these descriptors: a pipe of ours would never reach its end.
    with (folder / "start.log").open("wb") as log:
        return subprocess.run(
            [program, "-d"], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            check=False,
        ).returncode  # fmt: skip


def _quit_mps(program: str, env: Mapping[str, str]) -> None:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            [program], env=env, input=b"quit\n", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, timeout=30, check=False,
        )  # fmt: skip


@contextlib.contextmanager
def mig_instances(gpu: Gpu, profiles: Sequence[str]) -> Iterator[list[str]]:
    """UUIDs of new MIG instances on `gpu`, in the order of `profiles`, for the duration of a `with` block.

    MIG mode is turned on for it and off again, whenever a signal comes; a GPU that was in MIG mode before is refused,
    since its instances may be somebody's.

    Raises:
        BackendError: the GPU is in MIG mode, has no such profiles, or a command failed; the mode is as before.
    """
    if gpu.mig_parent is not None:
        raise BackendError("the GPU is in MIG mode already", hint="remove its instances and turn MIG mode off first")
    smi = ["nvidia-smi", "-i", str(gpu.index)]
    made = [*smi[:1], "mig", *smi[1:]]
    is_on = has_instances = False
    try:
        with deferred_signals():
            _run([*smi, "-mig", "1"])
            is_on = True
        with deferred_signals():
            has_instances = True  # a command that fails half-way leaves some
            _create(made, profiles)
        yield _instances_of(gpu, profiles)
    finally:
        with deferred_signals():
            for option in ("-dci", "-dgi") if has_instances else ():
                with contextlib.suppress(BackendError):
                    _run([*made, option])
            if is_on:
                _run([*smi, "-mig", "0"])


def _create(made: Sequence[str], profiles: Sequence[str]) -> None:
    """Create one GPU instance for each profile; for `3c.7g.40gb,3c.7g.40gb` one with two compute instances."""
    if "c." not in profiles[0]:
        _run([*made, "-cgi", ",".join(profiles), "-C"])
        return
    _run([*made, "-cgi", profiles[0].partition("c.")[2]])
    _run([*made, "-cci", ",".join(profiles)])


def _instances_of(gpu: Gpu, profiles: Sequence[str]) -> list[str]:
    """UUIDs of the instances of `gpu`, one for each of `profiles`, in their order."""
    backend = gpus.create("nvml")
    try:
        free = [found for found in backend.inventory() if found.mig_parent == gpu.uuid]
    finally:
        backend.close()
    uuids = []
    for profile in profiles:
        instance = next((found for found in free if found.mig_profile == profile), None)
        if instance is None:
            raise BackendError(f"NVML lists no instance `{profile}` after it was created")
        free.remove(instance)
        uuids.append(instance.uuid)
    return uuids


def _run(command: Sequence[str]) -> None:
    text = " ".join(command)
    try:
        done = subprocess.run(
            list(command), capture_output=True, text=True, errors="replace", timeout=mig.TIMEOUT_S, check=False,
            # Ctrl-C goes to the foreground process group: it would end the command that puts the mode back.
            start_new_session=True,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendError(f"`{text}` does not work: {error}") from error
    if done.returncode:
        message = " ".join((done.stderr or done.stdout).split())
        raise BackendError(f"`{text}` failed: {message}", hint="it needs root and an idle GPU that has MIG")


def check_idle(setup: CampaignSetup) -> None:
    """Refuse a GPU on which other processes hold memory: they would be slowed down, and the figures wrong.

    Raises:
        BackendError: there are such processes.
    """
    sample = None if setup.watch is None else setup.watch.read()
    pids = [process.pid for process in sample.processes] if sample is not None else []
    if pids:
        raise BackendError(
            f"the GPU is in use by {len(pids)} processes: {', '.join(map(str, pids[:5]))}",
            hint="name an idle one in CUDA_VISIBLE_DEVICES",
        )
