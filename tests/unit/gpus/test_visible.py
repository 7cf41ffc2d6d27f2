"""A backend that shows some of the GPUs of another."""

from __future__ import annotations

import pytest

from cotenant.core.errors import BackendError
from cotenant.core.gpu import Gpu, GpuSample
from cotenant.gpus.visible import VisibleGpus, choose_visible

GPUS = tuple(
    Gpu(uuid=uuid, index=index, name="A100", memory_total_bytes=2**30)
    for index, uuid in enumerate(("GPU-aa11", "GPU-aa22", "GPU-bb33"))
)


class ThreeGpus:
    name = "three"
    closed = False

    def inventory(self):
        return GPUS

    def sample(self, at_s):
        return {gpu.uuid: GpuSample(at_s=at_s) for gpu in GPUS if gpu.index != 2}

    def close(self):
        self.closed = True


@pytest.mark.parametrize(
    ("visible", "wanted"),
    [
        ("0", [0]),
        ("2,0", [2, 0]),
        (" 1 , ", [1]),
        ("GPU-bb33", [2]),
        ("GPU-b", [2]),
        ("GPU-aa", [0, 1]),
        ("0,GPU-aa11", [0]),
    ],
)
def test_gpus_are_named_as_cuda_names_them(visible, wanted):
    assert [gpu.index for gpu in choose_visible(GPUS, visible)] == wanted


@pytest.mark.parametrize("visible", ["3", "-1", "GPU-x", "", ",", "0,9", "٣"])
def test_what_names_no_gpu_is_refused(visible):
    with pytest.raises(BackendError):
        choose_visible(GPUS, visible)


def test_only_visible_gpus_are_listed_and_sampled():
    inner = ThreeGpus()
    backend = VisibleGpus(inner, "2,1")
    assert [gpu.index for gpu in backend.inventory()] == [1, 2]
    assert backend.sample(5.0) == {"GPU-aa22": GpuSample(at_s=5.0)}
    backend.close()
    assert inner.closed
