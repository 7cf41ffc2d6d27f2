"""MIG layouts through NVML, with a stand-in that keeps instances as the driver does: ctypes arrays, ids, errors."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from cotenant.core.errors import BackendError, NotPermitted
from cotenant.core.mig import layout_texts, parse_layout
from cotenant.gpus.mig_control import repartition
from cotenant.gpus.mig_nvml import NvmlMig

# Profiles of an A100-40GB. Source: `nvidia-smi mig -lgip`: name, id, compute slices, MiB, places, size of a place.
PROFILES = [
    ("MIG 1g.5gb", 19, 1, 4864, range(7), 1),
    ("MIG 2g.10gb", 14, 2, 9984, (0, 2, 4), 2),
    ("MIG 3g.20gb", 9, 3, 19968, (0, 4), 4),
    ("MIG 4g.20gb", 5, 4, 19968, (0,), 4),
    ("MIG 7g.40gb", 0, 7, 40192, (0,), 8),
    ("MIG 1g.5gb+me", 20, 1, 4864, range(7), 1),
]


class NvmlError(Exception):
    def __init__(self, value):
        super().__init__(f"NVML error {value}")
        self.value = value


class Placement(ctypes.Structure):
    _fields_ = (("start", ctypes.c_uint), ("size", ctypes.c_uint))


class Nvml:
    """One GPU in MIG mode. `fails`: {call: value of the error}."""

    NVMLError = NvmlError
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_GPU_INSTANCE_PROFILE_COUNT = 18
    NVML_COMPUTE_INSTANCE_PROFILE_COUNT = 9
    NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED = 0
    c_nvmlGpuInstance_t = ctypes.c_void_p  # noqa: N815
    c_nvmlComputeInstance_t = ctypes.c_void_p  # noqa: N815
    c_nvmlGpuInstancePlacement_t = Placement  # noqa: N815

    def __init__(self, *texts, mode=1):
        self.mode = mode
        self.fails = {}
        self.processes = []
        self.instances = {}  # handle -> (profile, start)
        self.compute = {}  # handle -> (handle of its GPU instance, slices)
        self.newest = 100
        for text in texts:
            name, _, start = text.partition(":")
            profile = next(row for row in PROFILES if row[0] == f"MIG {name}")
            handle = self._add(profile, int(start))
            self.compute[handle + 1000] = (handle, profile[2])

    def __getattribute__(self, name):
        if name.startswith("nvml") and name in object.__getattribute__(self, "fails"):
            value = self.fails[name]

            def fail(*_):
                raise NvmlError(value)

            return fail
        return object.__getattribute__(self, name)

    def _add(self, profile, start):
        places = set(range(start, start + profile[5]))
        for other, at in self.instances.values():
            if places & set(range(at, at + other[5])):
                raise NvmlError(23)
        self.newest += 1
        self.instances[self.newest] = (profile, start)
        return self.newest

    def nvmlDeviceGetCount(self):  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        assert index == 0
        return "gpu"

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        if uuid != b"GPU-0":
            raise NvmlError(6)
        return "gpu"

    def nvmlDeviceGetUUID(self, _):  # noqa: N802
        return "GPU-0"

    def nvmlDeviceGetMigMode(self, _):  # noqa: N802
        if self.mode is None:
            raise NvmlError(3)
        return [self.mode, 1]

    def nvmlDeviceGetComputeRunningProcesses(self, _):  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self.processes]

    def nvmlDeviceGetGraphicsRunningProcesses(self, _):  # noqa: N802
        return []

    def nvmlDeviceGetGpuInstanceProfileInfo(self, _, number):  # noqa: N802
        if number >= len(PROFILES):
            raise NvmlError(3)
        name, profile_id, slices, mib, *_ = PROFILES[number]
        return SimpleNamespace(id=profile_id, name=name.encode(), memorySizeMB=mib, sliceCount=slices)

    def nvmlDeviceGetGpuInstancePossiblePlacements(self, _, profile_id, array, count):  # noqa: N802
        *_, places, size = next(row for row in PROFILES if row[1] == profile_id)
        for number, start in enumerate(places):
            array[number] = Placement(start, size)
        count._obj.value = len(places)

    def nvmlDeviceGetGpuInstances(self, _, profile_id, array, count):  # noqa: N802
        found = [handle for handle, (profile, _) in self.instances.items() if profile[1] == profile_id]
        array[: len(found)] = found
        count._obj.value = len(found)

    def nvmlGpuInstanceGetInfo(self, handle):  # noqa: N802
        profile, start = self.instances[handle]
        return SimpleNamespace(id=handle, profileId=profile[1], placement=Placement(start, profile[5]))

    def nvmlGpuInstanceGetComputeInstanceProfileInfo(self, handle, number, engine):  # noqa: N802
        assert engine == 0
        slices = number + 1
        if slices > self.instances[handle][0][2]:
            raise NvmlError(3)
        return SimpleNamespace(id=number, sliceCount=slices)

    def nvmlGpuInstanceGetComputeInstances(self, handle, profile_id, array, count):  # noqa: N802
        found = [one for one, (own, slices) in self.compute.items() if (own, slices) == (handle, profile_id + 1)]
        array[: len(found)] = found
        count._obj.value = len(found)

    def nvmlDeviceCreateGpuInstanceWithPlacement(self, _, profile_id, placement):  # noqa: N802
        profile = next(row for row in PROFILES if row[1] == profile_id)
        return self._add(profile, placement._obj.start)

    def nvmlGpuInstanceCreateComputeInstance(self, handle, profile_id):  # noqa: N802
        self.compute[handle + 1000] = (handle, profile_id + 1)

    def nvmlComputeInstanceDestroy(self, handle):  # noqa: N802
        del self.compute[handle]

    def nvmlGpuInstanceDestroy(self, handle):  # noqa: N802
        if any(own == handle for own, _ in self.compute.values()):
            raise NvmlError(19)
        del self.instances[handle]


HALVES = ("4g.20gb:0", "3g.20gb:4")


def test_a_layout_is_read():
    (gpu,) = NvmlMig(Nvml(*HALVES)).gpus()
    assert (gpu.uuid, gpu.index, layout_texts(gpu.layout), gpu.foreign, gpu.incomplete) == ("GPU-0", 0, HALVES, "", ())
    sizes = {profile.name: profile.memory_bytes for profile in gpu.profiles}
    assert sizes["3g.20gb"] == 19968 * 2**20
    assert "1g.5gb+me" not in sizes


@pytest.mark.parametrize("mode", [0, None], ids=["disabled", "before Ampere"])
def test_a_gpu_that_is_not_in_mig_mode_is_left_out(mode):
    assert NvmlMig(Nvml(mode=mode)).gpus() == ()


def test_a_layout_is_changed():
    nvml = Nvml(*HALVES)
    after = ("1g.5gb:0", "2g.10gb:2", "3g.20gb:4")
    assert repartition(NvmlMig(nvml), "GPU-0", HALVES, after) == (after, None)
    assert len(nvml.compute) == 3


def test_an_instance_is_destroyed_with_its_compute_instance():
    nvml = Nvml(*HALVES)
    (gpu,) = NvmlMig(nvml).gpus()
    NvmlMig(nvml).destroy("GPU-0", gpu.layout[1])
    assert [start for _, start in nvml.instances.values()] == [0]
    with pytest.raises(BackendError, match=r"`3g\.20gb:4` does not exist"):
        NvmlMig(nvml).destroy("GPU-0", gpu.layout[1])


@pytest.mark.parametrize(
    ("call", "value", "message"),
    [
        ("nvmlDeviceGetGpuInstances", 4, "cannot list instances: no permission"),
        ("nvmlGpuInstanceDestroy", 19, "cannot destroy `4g.20gb:0`: in use"),
        ("nvmlComputeInstanceDestroy", 19, "cannot destroy `4g.20gb:0`: in use"),
        ("nvmlDeviceCreateGpuInstanceWithPlacement", 23, "cannot create `7g.40gb:0`: no room on the GPU"),
        ("nvmlDeviceCreateGpuInstanceWithPlacement", 4, "cannot create `7g.40gb:0`: no permission"),
        ("nvmlGpuInstanceCreateComputeInstance", 999, "cannot create `7g.40gb:0`: NVML error 999"),
        ("nvmlDeviceGetComputeRunningProcesses", 4, "cannot list processes: no permission"),
    ],
)
def test_each_refusal_of_the_driver_is_a_message(call, value, message):
    nvml = Nvml(*HALVES)
    nvml.fails[call] = value
    assert repartition(NvmlMig(nvml), "GPU-0", HALVES, ("7g.40gb:0",)).error.startswith(message)


def test_missing_rights_are_an_error_of_their_own():
    nvml = Nvml(*HALVES)
    nvml.fails["nvmlDeviceGetGpuInstances"] = 4
    with pytest.raises(NotPermitted) as caught:
        NvmlMig(nvml).gpus()
    assert caught.value.hint == "run the daemon as root"


def test_an_instance_of_another_profile_or_with_divided_slices_is_foreign():
    (gpu,) = NvmlMig(Nvml("1g.5gb+me:0", "3g.20gb:4")).gpus()
    assert gpu.foreign == "an instance of profile `1g.5gb+me`"
    nvml = Nvml("3g.20gb:4")
    nvml.compute = {1: (101, 1), 2: (101, 2)}
    assert NvmlMig(nvml).gpus()[0].foreign == "`3g.20gb:4` is divided into compute instances"


def test_an_instance_without_compute_instance_is_incomplete():
    nvml = Nvml(*HALVES)
    del nvml.compute[1102]
    (gpu,) = NvmlMig(nvml).gpus()
    assert (layout_texts(gpu.layout), layout_texts(gpu.incomplete)) == (("4g.20gb:0",), ("3g.20gb:4",))


def test_processes_are_those_of_the_gpu():
    nvml = Nvml(*HALVES)
    nvml.processes = [7, 8]
    assert NvmlMig(nvml).process_ids("GPU-0") == {7, 8}


def test_a_place_that_the_driver_does_not_allow_is_refused():
    nvml = Nvml()
    (gpu,) = NvmlMig(nvml).gpus()
    (instance,) = parse_layout(["2g.10gb:4"], gpu.profiles)
    places = PROFILES[1]
    try:
        PROFILES[1] = (*places[:4], (0, 2), 2)
        with pytest.raises(BackendError, match=r"does not allow `2g\.10gb:4`: it can start at 0, 2"):
            NvmlMig(nvml).create("GPU-0", instance)
    finally:
        PROFILES[1] = places


def test_an_instance_whose_compute_instance_is_refused_does_not_stay():
    nvml = Nvml("4g.20gb:0")
    nvml.fails["nvmlGpuInstanceCreateComputeInstance"] = 999
    assert repartition(NvmlMig(nvml), "GPU-0", ("4g.20gb:0",), HALVES).error.startswith("cannot create `3g.20gb:4`")
    assert [start for _, start in nvml.instances.values()] == [0]


def test_of_two_instances_of_a_profile_the_one_at_the_place_is_destroyed():
    nvml = Nvml("2g.10gb:0", "2g.10gb:2")
    (gpu,) = NvmlMig(nvml).gpus()
    NvmlMig(nvml).destroy("GPU-0", gpu.layout[1])
    assert [start for _, start in nvml.instances.values()] == [0]
