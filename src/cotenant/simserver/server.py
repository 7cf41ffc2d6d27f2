"""A simulated GPU server made of files: real processes attach to its GPUs, allocate memory and compute on them.

No process serves it. Each GPU is one JSON file, changed under a lock and replaced atomically, so any process may be
killed at any time: the next reader finds a complete file and removes processes that are gone, recognized by pid, start
time and boot. Until then these count, as load and as memory. Readers take no lock. Energy is integrated with each
change of a GPU.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cotenant.osutil import atomic
from cotenant.osutil.locks import locked
from cotenant.osutil.procfs import boot_id, is_alive, start_ticks
from cotenant.simserver.gpu import (
    ActivityChange,
    AttachedProcess,
    GpuState,
    SimulatedOutOfMemory,
    gpu_json,
    read_gpu,
)

SERVER_FILE = "server.json"
SCHEMA = 2

MAX_CHANGES = 256
"""Changes of activity that a GPU records, so that a job that wakes up late can still compute its progress."""


class SimulatedServer:
    """The GPUs of one simulated server, and its virtual clock."""

    def __init__(self, folder: Path, description: Mapping[str, Any]) -> None:
        self.folder = folder
        self.seed = int(description["seed"])
        self.time_scale = float(description["time_scale"])
        self._clock_start_s = float(description["clock_start_s"])
        self._virtual_start_s = float(description["virtual_start_s"])
        self.uuids: tuple[str, ...] = tuple(description["uuids"])

    @classmethod
    def create(cls, folder: Path, gpus: str, *, time_scale: float = 1.0, seed: int = 0) -> SimulatedServer:
        """A server with e.g. `4xA100-40GB` or `2xA100-40GB,1xL4-24GB`, whose time runs `time_scale` times as fast.

        A GPU in MIG mode has its instances after a slash: `1xA100-40GB/3g.20gb+3g.20gb`.

        Raises:
            UsageError: `gpus` cannot be parsed, or the folder holds a server already.
            UnknownName: there is no such GPU or MIG profile.
        """
        from cotenant.core.errors import UsageError
        from cotenant.gpu_specs import gpu_specs_by_name

        folder = Path(folder)
        models, specs = _parse_gpus(gpus), gpu_specs_by_name()
        if time_scale <= 0:
            raise UsageError(f"`time_scale` must be > 0, got {time_scale:g}")
        if (folder / SERVER_FILE).exists():
            raise UsageError(f"`{folder}` holds a simulated server already", hint="open it, or remove the folder")
        folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            folder.chmod(0o777)  # jobs of all users change the GPUs
        uuids = [f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'cotenant {seed} {i}')}" for i in range(len(models))]
        for index, (described, name) in enumerate(zip(models, uuids, strict=True)):
            model, _, layout = described.partition("/")
            spec = specs[model]
            assert spec.board_power_w is not None  # `_parse_gpus` refuses the others
            state = GpuState(
                uuid=name,
                number=index,
                model=model,
                total_bytes=spec.memory_total_bytes,
                board_power_w=spec.board_power_w,
            )
            _replace(folder / f"card-{index}.json", gpu_json(state))
            lock = folder / f"card-{index}.lock"
            lock.touch()
            if os.geteuid() == 0:
                lock.chmod(0o666)
            if layout:
                from cotenant.simserver.mig import write_layout

                write_layout(folder, index, model, layout.split("+"))
        description = {
            "schema": SCHEMA,
            "uuids": uuids,
            "time_scale": time_scale,
            "seed": seed,
            "boot_id": boot_id(),
            "clock_start_s": _clock_s(),
            "virtual_start_s": 0.0,
        }
        _replace(folder / SERVER_FILE, description)
        return cls(folder, description)

    @classmethod
    def open(cls, folder: Path) -> SimulatedServer:
        """The server in `folder`. After a reboot its virtual time continues from the last change of a GPU.

        Raises:
            BackendError: there is none, or its files cannot be read.
        """
        folder = Path(folder)
        try:
            description = _described(folder)
            if description["boot_id"] != boot_id():
                states = [read_gpu(folder / f"card-{i}.json") for i in range(len(description["uuids"]))]
                now = {"virtual_start_s": max(state.at_s for state in states), "clock_start_s": _clock_s()}
                description |= {**now, "boot_id": boot_id()}
                _replace(folder / SERVER_FILE, description)
            return cls(folder, description)
        except (OSError, ValueError, KeyError) as error:
            from cotenant.core.errors import BackendError

            hint = "create it first"
            raise BackendError(f"no simulated server in `{folder}`: {error}", hint=hint) from error

    def now_s(self) -> float:
        """Virtual seconds since the server was created."""
        return self._virtual_start_s + (_clock_s() - self._clock_start_s) * self.time_scale

    def index_of(self, gpu: str) -> int:
        """The GPU that `gpu` names, by UUID or by index.

        Raises:
            UnknownName: there is no such GPU.
        """
        if gpu in self.uuids:
            return self.uuids.index(gpu)
        if gpu.isdigit() and int(gpu) < len(self.uuids):
            return int(gpu)
        if gpu.startswith("MIG-"):
            from cotenant.simserver.mig import instance_numbers

            number = instance_numbers(self.folder, len(self.uuids)).get(gpu)
            if number is not None:
                return number
        from cotenant.core.errors import UnknownName

        raise UnknownName("GPU", gpu, self.uuids)

    def gpu(self, index: int) -> GpuState:
        """A GPU as it is now. Processes that are gone are removed from it, and from its file."""
        state = read_gpu(self._gpu_path(index))
        return state if all(map(is_alive, state.processes)) else self._change(index, lambda state: state)

    def stamp(self, index: int) -> tuple[int, int]:
        """Changes whenever the GPU changes, and is cheap to read."""
        stat = self._gpu_path(index).stat()
        return stat.st_ino, stat.st_mtime_ns

    def energy_j(self, state: GpuState) -> float:
        """Energy used up to now, in virtual time."""
        return state.energy_j + state.power_w * max(0.0, self.now_s() - state.at_s)

    def set_failed(self, gpu: str, *, failed: bool) -> None:
        """Let a GPU fail or recover; a failed GPU is in no sample."""
        self._change(self.index_of(gpu), lambda state: state._replace(failed=failed))

    def attach(self, gpu: str, *, context_bytes: int, label: str = "") -> Attachment:
        """Create this process's context on a GPU.

        Raises:
            SimulatedOutOfMemory: the context does not fit.
            UnknownName: there is no such GPU.
        """
        index = self.index_of(gpu)
        pid = os.getpid()
        process = AttachedProcess(uuid.uuid4().hex, pid, start_ticks(pid) or 0, boot_id(), label, context_bytes)

        def add(state: GpuState) -> GpuState:
            if state.free_bytes < context_bytes:
                raise SimulatedOutOfMemory(context_bytes, state, process)
            return state._replace(processes=(*state.processes, process))

        self._change(index, add)
        return Attachment(self, index, process.key)

    def _gpu_path(self, index: int) -> Path:
        return self.folder / f"card-{index}.json"

    def _change(self, index: int, edit: Callable[[GpuState], GpuState]) -> GpuState:
        """Apply `edit` to a GPU under its lock; if it raises, the GPU stays as it was."""
        with locked(self.folder / f"card-{index}.lock"):
            try:
                before = read_gpu(self._gpu_path(index))
            except FileNotFoundError as error:
                from cotenant.core.errors import BackendError

                raise BackendError("this MIG instance is gone", hint="its GPU has other instances now") from error
            now_s = max(before.at_s, self.now_s())
            # Energy first, for the GPU as it was; only then are dead processes removed and the edit applied.
            energy_j = before.energy_j + before.power_w * (now_s - before.at_s)
            alive = tuple(process for process in before.processes if is_alive(process))
            after = edit(before._replace(at_s=now_s, energy_j=energy_j, processes=alive))
            active = tuple(
                (process.key, process.label, process.smact) for process in after.processes if process.smact > 0
            )
            if active != after.changes[-1].active:
                after = after._replace(changes=(*after.changes, ActivityChange(now_s, active))[-MAX_CHANGES:])
            if after.processes != before.processes or after.failed != before.failed:
                _replace(self._gpu_path(index), gpu_json(after))
            return after


class Attachment:
    """The handle of a process on the GPU that it attached to."""

    def __init__(self, server: SimulatedServer, index: int, key: str) -> None:
        self.server = server
        self.index = index
        self.key = key

    def allocate(self, size_bytes: int) -> None:
        """Allocate memory.

        Raises:
            SimulatedOutOfMemory: the GPU has less than `size_bytes` free.
        """
        self._edit(lambda own: own._replace(allocated_bytes=own.allocated_bytes + size_bytes), grows_bytes=size_bytes)

    def free(self, size_bytes: int) -> None:
        """Free memory."""
        self._edit(lambda own: own._replace(allocated_bytes=max(0, own.allocated_bytes - size_bytes)))

    def set_activity(
        self, *, smact: float, smocc: float = 0.0, drama: float = 0.0, utilization: float = 0.0, speed: float = 1.0
    ) -> None:
        """Report the activity of this process alone on the GPU, and the share of its speed alone that it runs at."""
        self._edit(
            lambda own: own._replace(smact=smact, smocc=smocc, drama=drama, utilization=utilization, speed=speed)
        )

    def partners(self) -> tuple[AttachedProcess, ...]:
        """The other processes on the GPU."""
        return tuple(process for process in self.server.gpu(self.index).processes if process.key != self.key)

    def changes(self) -> tuple[ActivityChange, ...]:
        """The changes of who is active on the GPU, oldest first; the last one holds until now."""
        return self.server.gpu(self.index).changes

    def detach(self) -> None:
        """Detach from the GPU, which frees all memory."""
        self.server._change(
            self.index, lambda state: state._replace(processes=tuple(p for p in state.processes if p.key != self.key))
        )

    def _edit(self, edit: Callable[[AttachedProcess], AttachedProcess], *, grows_bytes: int = 0) -> None:
        def change(state: GpuState) -> GpuState:
            own = next((process for process in state.processes if process.key == self.key), None)
            if own is None:
                raise ValueError(f"process {os.getpid()} is not attached to GPU {self.index}")
            if grows_bytes > state.free_bytes:
                raise SimulatedOutOfMemory(grows_bytes, state, own)
            return state._replace(processes=tuple(edit(p) if p.key == self.key else p for p in state.processes))

        self.server._change(self.index, change)


def _clock_s() -> float:
    """Seconds since boot, suspend included; setting the time does not change it (CLOCK_BOOTTIME, clock_gettime(2))."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _replace(path: Path, value: Mapping[str, Any]) -> None:
    # There is one writer at a time: it holds the lock, or creates the server.
    atomic.write_text(path, json.dumps(value), mode=0o644, locked=True)


def _described(folder: Path) -> dict[str, Any]:
    description: dict[str, Any] = json.loads((folder / SERVER_FILE).read_text())
    if description["schema"] != SCHEMA:
        raise ValueError(f"schema {description['schema']}, wanted {SCHEMA}")
    return description


def check_gpus(text: str) -> None:
    """Check that `text` describes GPUs, e.g. `4xA100-40GB`.

    Raises:
        UsageError: it does not.
    """
    _parse_gpus(text)


def _parse_gpus(text: str) -> list[str]:
    from cotenant.core.errors import UnknownName, UsageError
    from cotenant.gpu_specs import gpu_specs_by_name

    known = [name for name, spec in gpu_specs_by_name().items() if spec.board_power_w is not None]
    described: list[str] = []
    for part in text.split(","):
        count, cross, name = part.strip().partition("x")
        if not cross or not count.isdigit() or not 1 <= int(count) <= 64:
            raise UsageError(f"`{part}` is not a number of GPUs", hint="write e.g. `4xA100-40GB`")
        model, slash, layout = name.partition("/")
        if model not in known:
            raise UnknownName("simulated GPU", model, known)
        if slash:
            from cotenant.simserver.mig import check_profiles

            check_profiles(model, layout.split("+"))
        described += [name] * int(count)
    return described
