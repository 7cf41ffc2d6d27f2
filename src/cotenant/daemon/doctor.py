"""Diagnoses this machine: what works, what is missing, and what to do about it. Changes nothing."""

from __future__ import annotations

import os
import re
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata, util
from pathlib import Path

import cotenant
from cotenant.core.errors import CotenantError, DaemonUnreachable
from cotenant.core.units import GiB, counted, format_bytes
from cotenant.daemon.auth.impersonation import why_root_only
from cotenant.daemon.client import Client
from cotenant.daemon.config import loader as configuration
from cotenant.daemon.config import paths
from cotenant.daemon.config.validation import check_config
from cotenant.daemon.doctor_gpus import Diagnosis, gpus, mig_layouts, sharing, suspension
from cotenant.daemon.setup import state_folder

MIN_TORCH = (2, 4)
FIRST_CUDNN_OF_CUDA_13 = 91900
"""From torch 2.11 on, PyPI's wheels are built for CUDA 13, with cuDNN 9.19 or newer."""
MIN_FREE_BYTES = GiB
MIN_OPEN_FILES = 1024
NETWORK_FILESYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "fuse.sshfs", "9p", "afs"}
"""On these, SQLite's locks and its write-ahead log cannot be relied on. Source: sqlite.org/wal.html and faq.html."""
EXTRAS = {"matplotlib": "plots", "sklearn": "learn", "scipy": "sim", "textual": "top"}


def examine(socket_file: Path, env: Mapping[str, str] = os.environ) -> Iterator[Diagnosis]:
    """Yield the results of all checks; a check that raises an exception is a problem, too."""
    checks: tuple[tuple[str, Callable[[], Iterator[Diagnosis]]], ...] = (
        ("cotenant", _versions),
        ("estimates", _torch),
        ("cuDNN", _cudnn),
        ("null GPU", _null_gpu),
        ("GPUs", gpus),
        ("sharing", sharing),
        ("MIG", mig_layouts),
        ("suspension", suspension),
        ("configuration", lambda: _configuration(env)),
        ("daemon", lambda: _daemon(socket_file)),
        ("state", lambda: _state(_state_folder(env))),
        ("limits", _limits),
        ("users", _users),
        ("extras", _extras),
    )
    for subject, check in checks:
        try:
            yield from check()
        except Exception as error:  # noqa: BLE001 (a broken check must not hide the others)
            yield Diagnosis(subject=subject, severity="problem", detail=f"{type(error).__name__}: {error}")


def _versions() -> Iterator[Diagnosis]:
    python = ".".join(map(str, sys.version_info[:3]))
    yield Diagnosis(
        subject="cotenant", severity="ok", detail=f"{cotenant.__version__} on Python {python}, {sys.prefix}"
    )


def _torch() -> Iterator[Diagnosis]:
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        yield Diagnosis(
            subject="estimates",
            severity="warning",
            detail="no torch in this Python: scripts can only be estimated in an environment that has one",
            advice="pip install 'cotenant[torch]', or name the job's Python with --python",
        )
        return
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < MIN_TORCH:
        wanted = ".".join(map(str, MIN_TORCH))
        yield Diagnosis(
            subject="estimates",
            severity="problem",
            detail=f"torch {version} cannot be traced",
            advice=f"install torch {wanted} or newer",
        )
        return
    yield Diagnosis(subject="estimates", severity="ok", detail=f"torch {version}")
    vision = _torchvision_version()
    if version.endswith("+cpu") and "+cu" in vision:
        # PyPI's wheel is for CUDA, and its metadata do not say so (torchvision/extension.py, `_has_ops`).
        yield Diagnosis(
            subject="torchvision",
            severity="warning",
            detail=f"torchvision {vision} beside torch {version}: it cannot be imported, except in a trace",
            advice="pip install --force-reinstall --no-deps torchvision --index-url https://download.pytorch.org/whl/cpu",
        )


def _torchvision_version() -> str:
    """The version of the installed torchvision with its build; empty without one. Nothing is imported."""
    try:
        file = Path(str(metadata.distribution("torchvision").locate_file("torchvision/version.py")))
        found = re.search(r"__version__ = ['\"]([^'\"]+)", file.read_text(encoding="utf-8"))
    except (metadata.PackageNotFoundError, OSError, UnicodeDecodeError):
        return ""
    return found[1] if found else ""


def _cudnn() -> Iterator[Diagnosis]:
    """Whether estimates can query cuDNN for the workspaces of convolutions; no library is loaded."""
    from cotenant.estimators.cudnn.table import cudnn_of_torch
    from cotenant.nullgpu.wheels import NullGpuError, wheels_in

    torch = util.find_spec("torch")
    try:
        version = cudnn_of_torch(metadata.version("torch"))
    except metadata.PackageNotFoundError:
        return
    if torch is None or torch.origin is None:
        return
    try:
        wheels = wheels_in([Path(torch.origin).parents[1] / "nvidia"], python=sys.executable)
    except NullGpuError:
        packages = f"'nvidia-cudnn-cu12=={version // 10_000}.{version // 100 % 100}.*' nvidia-cuda-runtime-cu12"
        if version >= FIRST_CUDNN_OF_CUDA_13:  # from CUDA 13 on, packages other than cuDNN's have no suffix
            packages = packages.replace("-cu12==", "-cu13==").removesuffix("-cu12")
        yield Diagnosis(
            subject="cuDNN",
            severity="optional",
            detail="none beside torch can be queried: workspaces of convolutions come from shipped answers or a rule",
            advice=f"pip install {packages} (1.2 GB, needs no GPU)",
        )
        return
    number = ".".join(map(str, wheels.cudnn))
    detail = f"cuDNN {number} beside torch answers for the workspaces of convolutions, without a GPU"
    yield Diagnosis(subject="cuDNN", severity="ok", detail=detail)


def _null_gpu() -> Iterator[Diagnosis]:
    """Whether `cotenant estimate --backend null-gpu` works in this Python; compiles nothing."""
    from cotenant.estimators.null_gpu import why_unavailable

    why, hint, detail = why_unavailable(sys.executable)
    if why:
        yield Diagnosis(
            subject="null GPU",
            severity="optional",
            detail=f"{why}; estimates leave CUDA extensions out, and compiled code where its compiler fails in a trace",
            advice=hint,
        )
    else:
        yield Diagnosis(subject="null GPU", severity="ok", detail=detail)


def _configuration(env: Mapping[str, str]) -> Iterator[Diagnosis]:
    files = [file for file in paths.config_files(env) if file.exists()]
    named = ", ".join(map(str, files)) or "defaults"
    try:
        config = configuration.load(files, env, {})
        check_config(config)
    except CotenantError as error:
        yield Diagnosis(
            subject="configuration",
            severity="problem",
            detail=error.message,
            advice=error.hint or "cotenant config show --origin",
        )
        return
    yield Diagnosis(subject="configuration", severity="ok", detail=f"{named}; policy {config.policy.name}")
    if config.tcp.listen is not None and config.tcp.tls_cert is None and config.tcp.plaintext:
        yield Diagnosis(
            subject="network",
            severity="warning",
            detail=f"tokens and jobs cross the network unencrypted at {config.tcp.listen}",
            advice="set tcp.tls_cert and tcp.tls_key",
        )


def _state_folder(env: Mapping[str, str]) -> Path:
    try:
        return state_folder(configuration.load(paths.config_files(env), env, {}), env)
    except CotenantError:  # `_configuration` reports it
        return paths.state_dir(env)


def _resolved(path: Path) -> str:
    """`/var/lib/cotenant`, or `/var/lib/cotenant -> /data/cotenant` where links lead elsewhere."""
    real = path.resolve()
    return str(path) if real == path else f"{path} -> {real}"


def _daemon(socket_file: Path) -> Iterator[Diagnosis]:
    try:
        status = Client(socket_file, timeout_s=5.0).status()
    except DaemonUnreachable:
        yield Diagnosis(
            subject="daemon", severity="optional", detail=f"none at {_resolved(socket_file)}", advice="cotenant daemon"
        )
        return
    except CotenantError as error:
        yield Diagnosis(subject="daemon", severity="problem", detail=error.message, advice=error.hint or "")
        return
    pilot = status.get("pilot")
    if pilot is not None and pilot["state"] != "on":
        advice = (
            "mend [pilot] or ask the cluster's administrator, then start the daemon again"
            if pilot["state"] == "paused"
            else ""
        )
        yield Diagnosis(subject="pilot", severity="problem", detail=pilot["message"], advice=advice)
    elif pilot is not None:
        count = len(pilot["allocations"])
        detail = pilot["message"] or f"{counted(count, 'allocation')}"
        yield Diagnosis(subject="pilot", severity="ok", detail=detail)
    about = f"pid {status['pid']}, policy {status['policy']}, {status['backend']}, state in {status['state_dir']}"
    if status["journal_error"]:
        yield Diagnosis(
            subject="daemon", severity="problem", detail=status["journal_error"], advice="make room on that disk"
        )
    elif status["version"] != cotenant.__version__:
        yield Diagnosis(
            subject="daemon",
            severity="warning",
            detail=f"{about}: it is version {status['version']}",
            advice="cotenant daemon stop, then start it again; jobs go on",
        )
    else:
        yield Diagnosis(subject="daemon", severity="ok", detail=about)


def _state(folder: Path) -> Iterator[Diagnosis]:
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(there, os.W_OK):
        yield Diagnosis(
            subject="state",
            severity="problem",
            detail=f"`{there}` cannot be written",
            advice="choose another --state-dir",
        )
        return
    kind = filesystem_of(there.resolve(), Path("/proc/self/mounts").read_text())
    if kind in NETWORK_FILESYSTEMS:
        yield Diagnosis(
            subject="state",
            severity="problem",
            detail=f"`{_resolved(folder)}` is on {kind}: a journal there may be damaged",
            advice="set daemon.state_dir to a local disk",
        )
    free_bytes = shutil.disk_usage(there).free
    if free_bytes < MIN_FREE_BYTES:
        yield Diagnosis(
            subject="state",
            severity="warning",
            detail=f"{format_bytes(free_bytes)} free for `{_resolved(folder)}`",
            advice="nothing can be submitted on a full disk",
        )
        return
    with tempfile.TemporaryDirectory(dir=there) as scratch:
        connection = sqlite3.connect(Path(scratch) / "probe.db")
        mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        connection.close()
    if mode != "wal":
        yield Diagnosis(
            subject="state", severity="problem", detail=f"SQLite gives no write-ahead log in `{there}` ({mode})"
        )
        return
    yield Diagnosis(
        subject="state", severity="ok", detail=f"{_resolved(folder)}, {format_bytes(free_bytes)} free, {kind}"
    )


def filesystem_of(path: Path, mounts: str) -> str:
    """Type of the file system of `path`, from a table like /proc/self/mounts; `unknown` if no line matches."""
    best, kind = -1, "unknown"
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = Path(fields[1].replace("\\040", " "))
        if (path == point or point in path.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), fields[2]
    return kind


def _limits() -> Iterator[Diagnosis]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < MIN_OPEN_FILES:
        yield Diagnosis(
            subject="limits",
            severity="warning",
            detail=f"{soft} open files: some {soft // 4} jobs and clients at once",
            advice="ulimit -n 4096",
        )
    linger = _linger()
    if linger is False:
        yield Diagnosis(
            subject="systemd",
            severity="warning",
            detail="your processes may be ended when you log out (no linger)",
            advice="loginctl enable-linger",
        )


def _users() -> Iterator[Diagnosis]:
    alone = why_root_only()
    if alone is not None:
        yield Diagnosis(
            subject="users",
            severity="warning",
            detail=f"only root can run {alone}: no estimates, log files of their own or notifications for other users",
            advice="for --all-users, install cotenant where every user can read, e.g. below /opt",
        )


def _linger() -> bool | None:
    """Whether processes of this user survive the logout; None without systemd."""
    if shutil.which("loginctl") is None or os.geteuid() == 0:
        return None
    try:
        done = subprocess.run(
            ["loginctl", "show-user", str(os.geteuid()), "--property=Linger"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {"Linger=yes": True, "Linger=no": False}.get(done.stdout.strip())


def _extras() -> Iterator[Diagnosis]:
    for module, extra in EXTRAS.items():
        if util.find_spec(module) is None:
            yield Diagnosis(
                subject=f"[{extra}]",
                severity="optional",
                detail="not installed",
                advice=f"pip install 'cotenant[{extra}]'",
            )
