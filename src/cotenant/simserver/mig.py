"""MIG instances of a simulated server: a GPU in MIG mode has a file with its layout, and each instance a GPU file.

The layout file says which instances there are; it is replaced atomically, so a process may be killed at any time. An
instance is created file first and destroyed layout first: a job never finds one that is not there. The UUID of an
instance follows from its place, as a driver may give the same one again.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Collection, Sequence
from pathlib import Path

from cotenant.core.errors import BackendError
from cotenant.core.gpu import Gpu
from cotenant.core.mig import (
    InstanceProfile,
    MigGpu,
    MigInstance,
    by_start,
    layout_of,
    layout_texts,
    parse_layout,
    parse_profiles,
    possible_instances,
)
from cotenant.gpu_specs import gpu_spec
from cotenant.osutil import atomic
from cotenant.osutil.locks import locked
from cotenant.osutil.procfs import is_alive
from cotenant.simserver.gpu import GpuState, gpu_json, read_gpu
from cotenant.simserver.server import SimulatedServer

DRIVER_S = 2.0
"""Virtual seconds to create or destroy an instance; not measured."""
FIRST_NUMBER = 1000
NUMBERS_PER_GPU = 100


def profiles_of(model: str) -> tuple[InstanceProfile, ...]:
    """The MIG profiles of a GPU model.

    Raises:
        UsageError, UnknownName: it has none, or is not known.
    """
    return parse_profiles([(profile.name, profile.memory_bytes) for profile in gpu_spec(model).mig])


def check_profiles(model: str, names: Sequence[str]) -> None:
    """Check that such a GPU can have these instances.

    Raises:
        UsageError, UnknownName: it cannot.
    """
    layout_of(names, profiles_of(model))


def write_layout(folder: Path, index: int, model: str, names: Sequence[str]) -> None:
    """Put a GPU into MIG mode with these instances, while the server is created."""
    lock = folder / f"mig-{index}.lock"
    lock.touch()
    layout = by_start(layout_of(names, profiles_of(model)))
    for instance in layout:
        _write_instance(folder, index, model, instance)
    _write(folder / f"mig-{index}.json", layout_texts(layout))


def instance_numbers(folder: Path, gpus: int) -> dict[str, int]:
    """Number of the GPU file of every instance that there is, by UUID."""
    found = {}
    for index in range(gpus):
        for text in _texts(folder, index) or ():
            number = _number(folder, index, text)
            found[_uuid(folder, index, text)] = number
    return found


class SimulatedMig:
    """The MIG layouts of a simulated server, as `gpus.mig_control.MigControl`."""

    def __init__(self, server: SimulatedServer) -> None:
        self._server = server
        self._folder = server.folder

    def gpus(self) -> tuple[MigGpu, ...]:
        """The GPUs in MIG mode."""
        found = []
        for index, gpu_uuid in enumerate(self._server.uuids):
            texts = _texts(self._folder, index)
            if texts is not None:
                profiles = profiles_of(_model(self._folder, index))
                layout = parse_layout(texts, profiles)
                found.append(MigGpu(uuid=gpu_uuid, index=index, profiles=profiles, layout=layout))
        return tuple(found)

    def instances(self) -> dict[int, list[tuple[int, Gpu]]]:
        """The instances of each GPU in MIG mode, by index: number of its GPU file, and what an inventory shows."""
        found: dict[int, list[tuple[int, Gpu]]] = {}
        for gpu in self.gpus():
            model = _model(self._folder, gpu.index)
            found[gpu.index] = [
                (
                    _number(self._folder, gpu.index, instance.text),
                    Gpu(
                        uuid=_uuid(self._folder, gpu.index, instance.text),
                        index=gpu.index,
                        name=f"{model} MIG {instance.profile.name}",
                        memory_total_bytes=instance.profile.memory_bytes,
                        mig_parent=gpu.uuid,
                        mig_profile=instance.profile.name,
                    ),
                )
                for instance in gpu.layout
            ]
        return found

    def process_ids(self, gpu_uuid: str) -> Collection[int]:
        """The processes on all instances of a GPU."""
        index = self._server.uuids.index(gpu_uuid)
        numbers = [_number(self._folder, index, text) for text in _texts(self._folder, index) or ()]
        return {process.pid for number in numbers for process in self._server.gpu(number).processes}

    def destroy(self, gpu_uuid: str, instance: MigInstance) -> None:
        """Destroy an instance that no process uses."""
        index = self._server.uuids.index(gpu_uuid)
        time.sleep(DRIVER_S / self._server.time_scale)
        number = _number(self._folder, index, instance.text)
        with locked(self._folder / f"mig-{index}.lock"):
            texts = _texts(self._folder, index) or ()
            if instance.text not in texts:
                raise BackendError(f"`{instance.text}` does not exist")
            with locked(self._folder / f"card-{number}.lock"):
                gpu_file = self._folder / f"card-{number}.json"
                if any(map(is_alive, read_gpu(gpu_file).processes)):
                    raise BackendError(f"`{instance.text}` is in use")
                _write(self._folder / f"mig-{index}.json", [text for text in texts if text != instance.text])
                gpu_file.unlink()

    def create(self, gpu_uuid: str, instance: MigInstance) -> None:
        """Create an instance."""
        index = self._server.uuids.index(gpu_uuid)
        model = _model(self._folder, index)
        time.sleep(DRIVER_S / self._server.time_scale)
        with locked(self._folder / f"mig-{index}.lock"):
            texts = _texts(self._folder, index) or ()
            layout = parse_layout([*texts, instance.text], profiles_of(model))
            _write_instance(self._folder, index, model, instance, at_s=self._server.now_s())
            _write(self._folder / f"mig-{index}.json", layout_texts(layout))


def _write_instance(folder: Path, index: int, model: str, instance: MigInstance, *, at_s: float = 0.0) -> None:
    number = _number(folder, index, instance.text)
    power_w = gpu_spec(model).board_power_w
    assert power_w is not None  # such a GPU is not simulated
    state = GpuState(
        uuid=_uuid(folder, index, instance.text),
        number=number,
        model=f"{model}/{instance.profile.name}",
        total_bytes=instance.profile.memory_bytes,
        board_power_w=power_w,
        at_s=at_s,
    )
    lock = folder / f"card-{number}.lock"
    lock.touch()
    if os.geteuid() == 0:
        lock.chmod(0o666)  # jobs of all users change the GPUs
    atomic.write_text(folder / f"card-{number}.json", json.dumps(gpu_json(state)), mode=0o644, locked=True)


def _write(path: Path, texts: Sequence[str]) -> None:
    atomic.write_text(path, json.dumps(list(texts)), mode=0o644, locked=True)


def _texts(folder: Path, index: int) -> tuple[str, ...] | None:
    """The instances of a GPU, or None if it is not in MIG mode."""
    with contextlib.suppress(FileNotFoundError):
        return tuple(json.loads((folder / f"mig-{index}.json").read_text()))
    return None


def _model(folder: Path, index: int) -> str:
    return read_gpu(folder / f"card-{index}.json").model


def _number(folder: Path, index: int, text: str) -> int:
    places = [instance.text for instance in possible_instances(profiles_of(_model(folder, index)))]
    return FIRST_NUMBER + NUMBERS_PER_GPU * index + places.index(text)


def _uuid(folder: Path, index: int, text: str) -> str:
    own = read_gpu(folder / f"card-{index}.json").uuid
    return f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, f'{own} {text}')}"
