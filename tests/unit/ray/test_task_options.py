"""What a Ray task requests; without Ray."""

from __future__ import annotations

import sys

import pytest

from cotenant.core.errors import UsageError
from cotenant.core.units import GiB
from cotenant.ray import options
from cotenant.ray.task_options import smallest_gpu


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        pytest.param({"memory": "10G"}, 0.25, id="a quarter"),
        pytest.param({"memory": 10 * GiB + 1}, 0.2501, id="rounded up to what Ray counts in"),
        pytest.param({"memory": 40 * GiB}, 1.0, id="all"),
        pytest.param({"memory": "30G", "gpus": 2}, 2, id="several GPUs are whole ones"),
        pytest.param({"memory": "10G", "gpu": "A100-80GB"}, 0.125, id="another GPU"),
    ],
)
def test_the_part_of_a_gpu_is_the_share_of_its_memory(given, parts):
    assert options("train.py", **{"gpu": "A100-40GB", **given}) == {"num_gpus": parts}


@pytest.mark.parametrize("memory", [40 * GiB + 1, 0])
def test_a_script_that_fits_nowhere_is_refused(memory):
    with pytest.raises(UsageError, match=r"and the A100-40GB has 40\.0 GiB"):
        options("train.py", gpu="A100-40GB", memory=memory)


def node(*names, gpus=1.0, alive=True):
    return {
        "Alive": alive,
        "Resources": {"GPU": gpus, "CPU": 4.0, **{f"accelerator_type:{name}": 1.0 for name in names}},
    }


@pytest.mark.parametrize(
    ("nodes", "name"),
    [
        pytest.param([node("A100")], "A100-40GB", id="the smaller of two of the same name"),
        pytest.param([node("H100"), node("L4")], "L4-24GB", id="the smallest of the cluster"),
        pytest.param([node("H100"), node("L4", alive=False), node(gpus=0.0)], "H100-80GB", id="nodes that count"),
        pytest.param([node("GeForce-RTX-3090")], "RTX3090-24GB", id="a product name"),
    ],
)
def test_the_gpu_is_the_smallest_of_the_cluster(nodes, name):
    assert smallest_gpu(nodes, "").name == name


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        pytest.param([node("A100"), node("MI300")], "has GPUs `MI300`", id="unknown"),
        pytest.param([node()], "of an unknown model", id="not told"),
        pytest.param([node(gpus=0.0)], "no node of the cluster has a GPU", id="none"),
    ],
)
def test_a_gpu_that_is_not_known_must_be_named(nodes, message):
    with pytest.raises(UsageError, match=message):
        smallest_gpu(nodes, "")


def test_without_ray_the_gpu_must_be_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="ray is not installed"):
        options("train.py", memory="1G")
