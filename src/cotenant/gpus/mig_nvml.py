"""MIG layouts through NVML; unproven on hardware: tested against a stand-in of the library only.

Source: NVML API reference, "Multi Instance GPU Management": `nvmlDeviceGetGpuInstances`,
`nvmlDeviceGetGpuInstancePossiblePlacements_v2`, `nvmlDeviceCreateGpuInstanceWithPlacement`,
`nvmlGpuInstanceCreateComputeInstance`, `nvmlComputeInstanceDestroy`, `nvmlGpuInstanceDestroy`. All of them need root.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple, TypeVar

from cotenant.core.errors import BackendError, CotenantError, NotPermitted, UsageError
from cotenant.core.mig import InstanceProfile, MigGpu, MigInstance, by_start, parse_profiles

T = TypeVar("T")

MIB = 2**20
MAX_INSTANCES = 64
_PERMISSION, _IN_USE, _NOT_FOUND, _NO_ROOM = 4, 19, 6, 23
"""`NVML_ERROR_NO_PERMISSION`, `IN_USE`, `NOT_FOUND`, `INSUFFICIENT_RESOURCES` (nvml.h, `nvmlReturn_t`)."""


class _GpuInstance(NamedTuple):
    """A GPU instance: its profile, or None for one that layouts are not made of; its compute instances, by profile."""

    handle: Any
    name: str
    profile: InstanceProfile | None
    start: int
    compute: tuple[tuple[Any, int], ...]


class NvmlMig:
    """The MIG layouts of this machine. `nvml`: the module `pynvml`, initialized."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml

    def gpus(self) -> tuple[MigGpu, ...]:
        """The GPUs in MIG mode, as they are now.

        Raises:
            BackendError: they cannot be read.
            NotPermitted: they cannot be read by this user.
        """
        count = self._call("list the GPUs", self._nvml.nvmlDeviceGetCount)
        found = []
        for index in range(count):
            handle = self._call("find a GPU", self._nvml.nvmlDeviceGetHandleByIndex, index)
            if self._is_in_mig_mode(handle):
                found.append(self._gpu(handle, index))
        return tuple(found)

    def process_ids(self, gpu_uuid: str) -> Collection[int]:
        """The processes on the GPU: in MIG mode, the driver gives those of all instances to root."""
        nvml, handle = self._nvml, self._handle(gpu_uuid)
        readers = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
        lists = [self._call("list processes", getattr(nvml, name), handle) for name in readers]
        return {int(process.pid) for processes in lists for process in processes}

    def destroy(self, gpu_uuid: str, instance: MigInstance) -> None:
        """Destroy the compute instance and then the GPU instance."""
        nvml, found = self._nvml, self._find(gpu_uuid, instance)
        if found is None:
            raise BackendError(f"`{instance.text}` does not exist")
        for compute, _ in found.compute:
            self._call(f"destroy `{instance.text}`", nvml.nvmlComputeInstanceDestroy, compute)
        self._call(f"destroy `{instance.text}`", nvml.nvmlGpuInstanceDestroy, found.handle)

    def create(self, gpu_uuid: str, instance: MigInstance) -> None:
        """Create a GPU instance at its place, and in it one compute instance with all of its SMs."""
        nvml, device, doing = self._nvml, self._handle(gpu_uuid), f"create `{instance.text}`"
        profile_id, placement = self._placement(device, instance)
        handle = self._call(doing, nvml.nvmlDeviceCreateGpuInstanceWithPlacement, device, profile_id, placement)
        try:
            compute_id = self._full_compute_profile(handle, instance)
            self._call(doing, nvml.nvmlGpuInstanceCreateComputeInstance, handle, compute_id)
        except CotenantError:
            with contextlib.suppress(CotenantError):
                self._call(doing, nvml.nvmlGpuInstanceDestroy, handle)
            raise

    # -- reading

    def _is_in_mig_mode(self, handle: Any) -> bool:
        try:
            return bool(self._nvml.nvmlDeviceGetMigMode(handle)[0] == self._nvml.NVML_DEVICE_MIG_ENABLE)
        except self._nvml.NVMLError:
            return False  # before Ampere

    def _gpu(self, handle: Any, index: int) -> MigGpu:
        uuid = _text(self._call("read a UUID", self._nvml.nvmlDeviceGetUUID, handle))
        sizes = [(name, size_bytes) for _, name, size_bytes in self._profiles(handle)]
        try:
            profiles = parse_profiles(sizes)
        except UsageError as error:
            raise BackendError(f"GPU {index}: {error.message}") from error
        complete, incomplete, foreign = [], [], ""
        for instance in self._instances(handle, profiles):
            if instance.profile is None:
                foreign = f"an instance of profile `{instance.name}`"
                continue
            placed = MigInstance(profile=instance.profile, start=instance.start)
            slices = [compute for _, compute in instance.compute]
            if not slices:
                incomplete.append(placed)
            elif slices == [instance.profile.compute]:
                complete.append(placed)
            else:
                foreign = f"`{placed.text}` is divided into compute instances"
        return MigGpu(
            uuid=uuid,
            index=index,
            profiles=profiles,
            layout=by_start(complete),
            incomplete=by_start(incomplete),
            foreign=foreign,
        )

    def _handle(self, gpu_uuid: str) -> Any:
        return self._call("find a GPU", self._nvml.nvmlDeviceGetHandleByUUID, gpu_uuid.encode())

    def _profiles(self, handle: Any) -> Iterator[tuple[int, str, int]]:
        """Id, name such as `3g.20gb`, and memory of every profile of a GPU; those it does not have are skipped."""
        for number in range(self._nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                info = self._nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number)
            except self._nvml.NVMLError:
                continue
            yield int(info.id), _text(info.name).removeprefix("MIG ").strip(), int(info.memorySizeMB) * MIB

    def _instances(self, handle: Any, profiles: tuple[InstanceProfile, ...]) -> Iterator[_GpuInstance]:
        nvml = self._nvml
        by_name = {profile.name: profile for profile in profiles}
        for profile_id, name, _ in self._profiles(handle):
            instances = self._listed(nvml.c_nvmlGpuInstance_t, nvml.nvmlDeviceGetGpuInstances, handle, profile_id)
            for instance in instances:
                info = self._call("read an instance", nvml.nvmlGpuInstanceGetInfo, instance)
                compute = tuple(self._compute_instances(instance))
                yield _GpuInstance(instance, name, by_name.get(name), int(info.placement.start), compute)

    def _compute_instances(self, instance: Any) -> Iterator[tuple[Any, int]]:
        """The compute instances in a GPU instance, and their compute slices."""
        nvml = self._nvml
        for profile_id, slices in self._compute_profiles(instance):
            found = self._listed(
                nvml.c_nvmlComputeInstance_t, nvml.nvmlGpuInstanceGetComputeInstances, instance, profile_id
            )
            for compute in found:
                yield compute, slices

    def _compute_profiles(self, instance: Any) -> Iterator[tuple[int, int]]:
        """Id and compute slices of every profile of compute instances that a GPU instance can have."""
        nvml = self._nvml
        for number in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try:
                info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                    instance, number, nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
                )
            except nvml.NVMLError:
                continue
            yield int(info.id), int(info.sliceCount)

    def _full_compute_profile(self, handle: Any, instance: MigInstance) -> int:
        for profile_id, slices in self._compute_profiles(handle):
            if slices == instance.profile.compute:
                return profile_id
        raise BackendError(f"`{instance.text}` has no compute profile of all its slices")

    def _placement(self, device: Any, instance: MigInstance) -> tuple[int, Any]:
        """Id of the profile, and the place of the instance among those that the driver allows."""
        nvml = self._nvml
        for profile_id, name, _ in self._profiles(device):
            if name != instance.profile.name:
                continue
            places = self._listed(
                nvml.c_nvmlGpuInstancePlacement_t, nvml.nvmlDeviceGetGpuInstancePossiblePlacements, device, profile_id
            )
            for place in places:
                if int(place.start) == instance.start:
                    return profile_id, ctypes.byref(place)
            starts = ", ".join(str(place.start) for place in places) or "nowhere"
            raise BackendError(f"the driver does not allow `{instance.text}`: it can start at {starts}")
        raise BackendError(f"the driver has no profile `{instance.profile.name}`")

    def _find(self, gpu_uuid: str, instance: MigInstance) -> _GpuInstance | None:
        for found in self._instances(self._handle(gpu_uuid), (instance.profile,)):
            if found.profile is not None and found.start == instance.start:
                return found
        return None

    def _listed(self, kind: Any, fill: Callable[..., Any], *of: Any) -> list[Any]:
        """What the driver writes into an array of `kind`, which is long enough for every GPU."""
        array, count = (kind * MAX_INSTANCES)(), ctypes.c_uint(MAX_INSTANCES)
        self._call("list instances", fill, *of, array, ctypes.byref(count))
        return [array[place] for place in range(min(MAX_INSTANCES, int(count.value)))]

    def _call(self, doing: str, function: Callable[..., T], *args: Any) -> T:
        """The result of a call.

        Raises:
            BackendError, NotPermitted: the driver refuses.
        """
        try:
            return function(*args)
        except self._nvml.NVMLError as error:
            value = int(getattr(error, "value", None) or 0)
            if value == _PERMISSION:
                raise NotPermitted(f"cannot {doing}: no permission", hint="run the daemon as root") from error
            reasons = {_IN_USE: "in use", _NOT_FOUND: "not found", _NO_ROOM: "no room on the GPU"}
            raise BackendError(f"cannot {doing}: {reasons.get(value, error)}") from error


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
