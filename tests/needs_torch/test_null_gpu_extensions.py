"""Extensions that a script builds on the null GPU: the GPU that they are built for, and where a build does not end."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="builds extensions of torch")

from cotenant.tracing.cuda_build.extension_builds import ExtensionBuilds, narrow_architectures  # noqa: E402
from cotenant.tracing.patches.registry import PatchTable  # noqa: E402

LIST = "TORCH_CUDA_ARCH_LIST"


@pytest.mark.parametrize(
    ("listed", "capability", "left"),
    [
        pytest.param("7.0 7.5 8.0 8.6+PTX", (8, 0), "8.0", id="one of several"),
        pytest.param("8.0;8.6;9.0a;9.0", (9, 0), "9.0a;9.0", id="those of one GPU"),
        pytest.param("8.0;9.0+PTX", (9, 0), "9.0+PTX", id="with code for later ones"),
        pytest.param("7.0;7.5", (8, 0), "7.0;7.5", id="none for this GPU"),
        pytest.param("Ampere", (8, 0), "Ampere", id="a name"),
        pytest.param("10.0;12.0", (1, 0), "10.0;12.0", id="no beginning of a number"),
    ],
)
def test_extension_is_built_for_the_estimated_gpu_alone(listed, capability, left):
    env = {LIST: listed}
    narrow_architectures(env, capability)
    assert env == {LIST: left}


def test_list_that_is_not_set_stays_so():
    env = {}
    narrow_architectures(env, (8, 0))
    assert env == {}


def test_build_has_a_name_until_it_ends():
    import torch.utils.cpp_extension as extensions

    builds = ExtensionBuilds()
    table = PatchTable(builds.patches())
    table.apply()
    during = []

    class Sources(list):
        """Looked at first, and then refused: nothing is compiled."""

        def __iter__(self):
            during.append(builds.name)
            raise OSError

    try:
        with pytest.raises((OSError, TypeError)):
            extensions.load("square", Sources(["square.cu"]))
    finally:
        table.undo()
    assert (set(during), builds.name, builds.count) == ({"square"}, "", 1)
