"""The table of GPUs: its figures, their sources, and the names a GPU is found by."""

from __future__ import annotations

import pytest

from cotenant.core.errors import UnknownName, UsageError
from cotenant.core.units import GiB, MiB
from cotenant.estimators.api import DEFAULT_GPU
from cotenant.gpu_specs import (
    all_gpu_specs,
    derived_context,
    gpu_spec,
    gpu_spec_for_nvml,
    gpu_specs_by_name,
    parse_gpu_spec,
    sizes_of,
)
from cotenant.gpus.power_model import power_model
from cotenant.learn.synthetic_traces import simulation
from cotenant.sim.cluster import memory_bytes
from cotenant.sim.interference import model as interference_model
from cotenant.simserver.backend import SimulatedBackend
from cotenant.simserver.server import SimulatedServer

NAMES = [
    "A100-40GB",
    "A100-80GB",
    "A10G-24GB",
    "H100-80GB",
    "H200-141GB",
    "L4-24GB",
    "L40S-48GB",
    "RTX2080Ti-11GB",
    "RTX3060-12GB",
    "RTX3090-24GB",
    "RTX4060-8GB",
    "RTX4090-24GB",
    "T4-16GB",
    "V100-16GB",
    "V100-32GB",
]


def test_all_gpus_are_listed_by_name():
    assert [spec.name for spec in all_gpu_specs()] == NAMES


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("A100-40GB", "A100-40GB"),
        ("a100", "A100-40GB"),
        ("a100_40gb", "A100-40GB"),
        ("A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("h100", "H100-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("rtx 3060", "RTX3060-12GB"),
        ("NVIDIA GeForce RTX 4090", "RTX4090-24GB"),
        ("Tesla T4", "T4-16GB"),
        ("GeForce RTX 3090", "RTX3090-24GB"),
        ("V100-SXM2-16GB", "V100-16GB"),
        ("v100_32gb", "V100-32GB"),
    ],
)
def test_a_gpu_is_found_by_any_of_its_names(name, found):
    assert gpu_spec(name).name == found


def test_no_two_gpus_share_a_name():
    names = {
        spec.name: {name.lower() for name in (spec.name, *spec.aliases, *spec.nvml_names)} for spec in all_gpu_specs()
    }
    for owner, own in names.items():
        for name in own:
            assert [other for other, known in names.items() if name in known] == [owner]
            assert gpu_spec(name).name == owner


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UnknownName, match="no GPU named `A100-41GB`") as caught:
        gpu_spec("A100-41GB")
    assert caught.value.hint is not None


@pytest.mark.parametrize(
    ("size", "hint"),
    [
        ("40GB", "of 40 GB: A100-40GB"),
        ("24 G", "of 24 GB: A10G-24GB, L4-24GB, RTX3090-24GB, RTX4090-24GB"),
        ("17gib", "by its model"),
    ],
)
def test_a_size_is_no_name_and_lists_the_gpus_of_that_size(size, hint):
    with pytest.raises(UnknownName) as caught:
        gpu_spec(size)
    assert caught.value.hint.endswith(hint)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("A100", ("A100-40GB", "A100-80GB")),
        ("v100:1g", ("V100-16GB", "V100-32GB")),
        ("A100-40GB", ()),
        ("H100", ()),
        ("Radeon", ()),
    ],
)
def test_a_name_of_several_sizes(name, wanted):
    assert sizes_of(name) == wanted


@pytest.mark.parametrize("spec", all_gpu_specs(), ids=lambda spec: spec.name)
def test_every_figure_has_a_source_and_a_plausible_value(spec):
    figures = ("memory_total_bytes", "sm_count", "compute_capability", "cublas_workspace_bytes", "board_power_w")
    for name in (*figures, "context"):
        assert spec.sources[name]
    assert ("torch_total_bytes" in spec.sources) == (spec.torch_total_bytes is not None)
    assert ("mig" in spec.sources) == bool(spec.mig)
    gb = int(spec.name.rpartition("-")[2].removesuffix("GB"))
    assert abs(spec.memory_total_bytes / 10**9 - gb) <= 0.075 * gb
    assert spec.torch_total_bytes is None or spec.torch_total_bytes < spec.memory_total_bytes
    assert spec.cublas_workspace_bytes == (32 * MiB if spec.compute_capability == (9, 0) else 8_519_680)
    assert spec.context.low_bytes <= spec.context.typical_bytes <= spec.context.high_bytes < 2 * GiB
    for instance in spec.mig:
        assert instance.memory_bytes < spec.memory_total_bytes
        assert instance.sm_count <= spec.sm_count


def test_the_context_of_the_a100_is_measured():
    spec = gpu_spec("A100-40GB")
    assert spec.context.typical_bytes == 524 * MiB
    assert not spec.context.derived
    assert spec.eager_context.typical_bytes == 1718 * MiB
    assert (spec.eager_context.bare_bytes, spec.eager_context.cublas_bytes) == (1237 * MiB, 1429 * MiB)


@pytest.mark.parametrize(
    ("name", "low", "typical", "high", "bare"),
    [
        pytest.param("V100-16GB", 1005, 1822, 1822, 1341, id="bare measured in 2022"),
        pytest.param("V100-32GB", 1005, 1822, 1822, 1341, id="the same chip"),
        pytest.param("RTX2080Ti-11GB", 877, 1358, 1822, 877, id="bare measured in 2020"),
        pytest.param("T4-16GB", 516, 1358, 1822, None, id="assumed"),
    ],
)
def test_eager_contexts_of_older_gpus_are_intervals(name, low, typical, high, bare):
    found = gpu_spec(name).eager_context
    assert (found.low_bytes, found.typical_bytes, found.high_bytes) == (low * MiB, typical * MiB, high * MiB)
    assert found.bare_bytes == (None if bare is None else bare * MiB)
    assert found.derived
    assert "ssumed" in found.source


def test_contexts_that_nobody_measured_are_marked_derived():
    assert {spec.name for spec in all_gpu_specs() if not spec.context.derived} == {"A100-40GB"}


@pytest.mark.parametrize(
    ("sm_count", "measured_mib", "which"),
    [
        pytest.param(108, 524, "typical_bytes", id="A100, loaded"),
        pytest.param(142, 426, "low_bytes", id="RTX 6000 Ada, bare"),
        pytest.param(82, 256, "low_bytes", id="RTX 3090, bare"),
        pytest.param(28, 140, "typical_bytes", id="RTX 3060, loaded"),
        pytest.param(24, 125, "typical_bytes", id="RTX 4060, loaded"),
    ],
)
def test_the_context_rule_is_near_measured_contexts(sm_count, measured_mib, which):
    context = derived_context(sm_count)
    assert getattr(context, which) / MiB == pytest.approx(measured_mib, rel=0.08)
    assert measured_mib * MiB <= context.high_bytes


@pytest.mark.parametrize(
    ("name", "mib", "found"),
    [
        pytest.param("NVIDIA A100-SXM4-40GB", 40960, "A100-40GB", id="A100"),
        pytest.param("NVIDIA A100-SXM4-40GB", 40536, "A100-40GB", id="an older driver"),
        pytest.param("Tesla V100-SXM2-32GB", 32510, "V100-32GB", id="an older driver, V100"),
        pytest.param("NVIDIA L40S", 49140, "L40S-48GB", id="without ECC"),
        pytest.param("NVIDIA GeForce RTX 3060", 8192, None, id="the 8 GB card of the same name"),
        pytest.param("NVIDIA GeForce RTX 3060 Laptop GPU", 12288, None, id="another chip"),
        pytest.param("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 20096, "A100-40GB:3g.20gb", id="MIG"),
        pytest.param("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 40960, None, id="MIG with the memory of the card"),
        pytest.param("NVIDIA A100-SXM4-40GB MIG 9g.99gb", 20096, None, id="no such MIG profile"),
        pytest.param("a100-40", 40960, None, id="an alias is not what NVML says"),
        pytest.param("A100-40GB", 40960, "A100-40GB", id="a simulated GPU"),
        pytest.param("Radeon", 8192, None, id="unknown"),
    ],
)
def test_a_gpu_is_found_by_its_nvml_name_and_memory(name, mib, found):
    spec = gpu_spec_for_nvml(name, mib * MiB)
    assert (spec and spec.name) == found


def test_a_mig_instance_has_its_own_memory_and_derived_context():
    spec = gpu_spec("A100-40:3G.20GB")
    assert (spec.name, spec.sm_count, spec.mig) == ("A100-40GB:3g.20gb", 42, ())
    assert spec.memory_total_bytes == 20096 * MiB
    assert spec.torch_total_bytes is None
    assert spec.context == derived_context(42)
    assert "lgip" in spec.sources["memory_total_bytes"]


@pytest.mark.parametrize("name", ["A100-40:8g.99gb", "T4:1g.5gb"])
def test_an_unknown_mig_profile_is_refused(name):
    with pytest.raises(UnknownName, match="no MIG profile of"):
        gpu_spec(name)


def test_no_mig_instance_has_more_memory_than_its_gpu():
    for spec in all_gpu_specs():
        for profile in spec.mig:
            assert spec.instance(profile.name).usable_bytes <= spec.usable_bytes, f"{spec.name}:{profile.name}"


def test_every_gpu_can_be_simulated(tmp_path):
    for spec in all_gpu_specs():
        SimulatedServer.create(tmp_path / spec.name, f"1x{spec.name}")
        (gpu,) = SimulatedBackend(tmp_path / spec.name).inventory()
        assert (gpu.name, gpu.memory_total_bytes) == (spec.name, spec.memory_total_bytes)
        assert memory_bytes(spec.name) == spec.memory_total_bytes
        assert power_model(spec.name).watts(1, 1.0) <= spec.board_power_w


def test_text_that_is_no_gpu_is_refused():
    with pytest.raises(UsageError, match="not a GPU specification: KeyError"):
        parse_gpu_spec("aliases = []")


def test_gpus_named_in_the_code_are_in_the_table():
    named = {DEFAULT_GPU, interference_model.DEFAULT_GPU, simulation.GPU}
    assert named <= set(gpu_specs_by_name())
