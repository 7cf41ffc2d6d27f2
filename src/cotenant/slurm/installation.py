"""Slurm's programs on this machine, and what they print."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cotenant.core.errors import BackendError, UsageError

BIN_VARIABLE = "COTENANT_SLURM_BIN"
"""Folder of Slurm's programs; by default they are looked for on the PATH."""
TIMEOUT_S = 60.0
_SNIFF_BYTES = 4096
MAX_MESSAGE_CHARS = 300
SEPARATOR = "|"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmInstallation:
    """Slurm's programs, which found a configuration.

    Attributes:
        folder: where `sbatch` is.
        version: as it prints it, e.g. `slurm-wlm 22.05.8`.
    """

    folder: Path
    version: str

    def program(self, name: str) -> str:
        """Path of one of Slurm's programs.

        Raises:
            UsageError: it is not installed.
        """
        path = self.folder / name
        found = str(path) if os.access(path, os.X_OK) else real_program(name, os.environ)
        if found is None:
            raise UsageError(f"Slurm's `{name}` is neither in `{self.folder}` nor on the PATH")
        return found

    def output(self, name: str, *words: str, env: Mapping[str, str] | None = None) -> str:
        """What one of Slurm's programs prints.

        Raises:
            BackendError: it fails; the message is Slurm's. UsageError: it is not installed.
        """
        command = [self.program(name), *words]
        try:
            done = subprocess.run(
                command, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired as error:
            raise BackendError(f"`{name}` has not answered within {TIMEOUT_S:g} s", hint="is slurmctld up?") from error
        if done.returncode:
            raise BackendError(message_of(done.stderr, name, done.returncode))
        return done.stdout.decode(errors="replace")

    def cluster_name(self) -> str:
        """Name of the cluster: of the allocation that this process is in, else of the configuration."""
        named = os.environ.get("SLURM_CLUSTER_NAME")
        if named:
            return named
        found = re.search(r"^ClusterName\s*=\s*(\S+)", self.output("scontrol", "show", "config"), re.MULTILINE)
        return found[1] if found else "cluster"


def message_of(stderr: bytes, name: str, code: int) -> str:
    """The last message of one of Slurm's programs, without its prefix."""
    lines = [line for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    text = re.sub(rf"^{name}: (error|fatal): ", "", lines[-1]) if lines else f"`{name}` ended with exit code {code}"
    return f"Slurm: {text[:MAX_MESSAGE_CHARS]}" if lines else text


def find_installation(env: Mapping[str, str] = os.environ) -> SlurmInstallation:
    """Slurm on this machine.

    Raises:
        UsageError: there is none, or it has no configuration here; the message says which.
    """
    sbatch = real_program("sbatch", env)
    if sbatch is None:
        raise UsageError(
            "no Slurm here: there is no `sbatch` on the PATH",
            hint=f"name the folder of Slurm's programs in {BIN_VARIABLE}, or use a daemon: --to daemon",
        )
    try:
        done = subprocess.run(
            [sbatch, "--version"],
            env=dict(env),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"`{sbatch} --version` does not run: {error}") from error
    if done.returncode:
        raise UsageError(
            f"no Slurm here: `{sbatch}` finds no configuration", hint="SLURM_CONF names its file, or use --to daemon"
        )
    return SlurmInstallation(folder=Path(sbatch).parent, version=done.stdout.decode(errors="replace").strip())


def real_program(name: str, env: Mapping[str, str]) -> str | None:
    """Path of Slurm's program `name`; None if there is none. Scripts that call cotenant by that name are passed over.

    People link `sbatch` to `cotenant sbatch`: such a link would call itself.
    """
    named = env.get(BIN_VARIABLE)
    folders = [named] if named else env.get("PATH", os.defpath).split(os.pathsep)
    for folder in folders:
        found = shutil.which(name, path=folder) if folder else None
        if found is not None and not _calls_cotenant(found):
            return found
    return None


def _calls_cotenant(path: str) -> bool:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            head = file.read(_SNIFF_BYTES)
    except OSError:
        return False
    return head.startswith(b"#!") and b"cotenant" in head


def literal_path(path: Path | str) -> str:
    """A path as sbatch's --output takes it for itself: `%` begins one of its patterns.

    In a path with a backslash, which escapes, it replaces none (seen with 22.05.8).
    """
    text = str(path)
    return text.replace("\\", r"\\") if "\\" in text else text.replace("%", "%%")


def without_allocation(env: Mapping[str, str]) -> dict[str, str]:
    """`env` without the allocation that it describes: a job that is submitted from a job must not inherit its sizes."""
    from_slurm = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_")
    return {name: value for name, value in env.items() if not name.startswith(from_slurm) or name in ("SLURM_CONF",)}


def split_rows(text: str, columns: Sequence[str]) -> list[dict[str, str]]:
    """Rows that Slurm printed with `|` after each column; the last column may hold further ones."""
    rows = []
    for line in text.splitlines():
        cells = line.split(SEPARATOR, len(columns) - 1)
        if len(cells) == len(columns):
            rows.append(dict(zip(columns, (cell.strip().removesuffix(SEPARATOR) for cell in cells), strict=True)))
    return rows


def split_marked_rows(text: str, columns: Sequence[str], mark: str) -> list[dict[str, str]]:
    """Rows that Slurm printed with `mark` after each column; no cell holds it, but any may hold lines."""
    cells = [cell.strip() for cell in text.split(mark)]
    starts = range(0, len(cells) - len(columns), len(columns))
    return [dict(zip(columns, cells[start : start + len(columns)], strict=True)) for start in starts]
