"""Device profiles: their figures, their sources, and by which names they are found."""

from __future__ import annotations

import pytest

from cotenant.core.errors import UnknownName
from cotenant.core.units import GiB, MiB
from cotenant.estimators.replay_input import usable_bytes
from cotenant.gpu_specs import all_gpu_specs, derived_context, gpu_spec, gpu_spec_for_nvml

NAMES = [
    "A100-40GB",
    "A100-80GB",
    "A10G-24GB",
    "H100-80GB",
    "H200-141GB",
    "L40S-48GB",
    "RTX3060-12GB",
    "RTX3090-24GB",
    "RTX4060-8GB",
    "RTX4090-24GB",
    "T4-16GB",
    "V100-16GB",
    "V100-32GB",
]


def test_the_cards():
    assert [each.name for each in all_gpu_specs()] == NAMES


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("A100-40GB", "A100-40GB"),
        ("a100", "A100-40GB"),
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
def test_names(name, found):
    assert gpu_spec(name).name == found


def test_no_two_cards_share_a_name():
    names = [name for each in all_gpu_specs() for name in (each.name, *each.aliases, *each.nvml_names)]
    for name in names:
        owners = [
            each.name
            for each in all_gpu_specs()
            if name.lower() in {n.lower() for n in (each.name, *each.aliases, *each.nvml_names)}
        ]
        assert owners == [gpu_spec(name).name]


def test_an_unknown_name():
    with pytest.raises(UnknownName, match="no device profile named `A100-41GB`") as caught:
        gpu_spec("A100-41GB")
    assert caught.value.hint is not None


@pytest.mark.parametrize("card", all_gpu_specs(), ids=lambda each: each.name)
def test_every_figure_has_a_source_and_sense(card):
    for name in ("memory_total_bytes", "sm_count", "compute_capability", "cublas_workspace_bytes", "context"):
        assert card.sources[name]
    assert ("torch_total_bytes" in card.sources) == (card.torch_total_bytes is not None)
    assert ("mig" in card.sources) == bool(card.mig)
    gb = int(card.name.rpartition("-")[2].removesuffix("GB"))
    assert abs(card.memory_total_bytes / 10**9 - gb) <= 0.075 * gb
    assert card.torch_total_bytes is None or card.torch_total_bytes < card.memory_total_bytes
    assert card.cublas_workspace_bytes == (32 * MiB if card.compute_capability == (9, 0) else 8_519_680)
    assert card.context.low_bytes <= card.context.typical_bytes <= card.context.high_bytes < 2 * GiB
    for instance in card.mig:
        assert instance.memory_bytes < card.memory_total_bytes
        assert instance.sm_count <= card.sm_count


def test_contexts_of_the_a100():
    card = gpu_spec("A100-40GB")
    assert card.context.typical_bytes == 524 * MiB
    assert not card.context.derived
    assert card.eager_context.typical_bytes == 1718 * MiB
    assert (card.eager_context.bare_bytes, card.eager_context.cublas_bytes) == (1237 * MiB, 1429 * MiB)


def test_contexts_that_nobody_measured_are_marked():
    assert {each.name for each in all_gpu_specs() if not each.context.derived} == {"A100-40GB"}


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
def test_the_rule_meets_what_was_measured(sm_count, measured_mib, which):
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
        pytest.param("a100", 40960, None, id="an alias is not what NVML says"),
        pytest.param("Radeon", 8192, None, id="unknown"),
    ],
)
def test_what_nvml_says(name, mib, found):
    card = gpu_spec_for_nvml(name, mib * MiB)
    assert (card and card.name) == found


def test_a_mig_instance():
    card = gpu_spec("A100:3G.20GB")
    assert (card.name, card.sm_count, card.mig) == ("A100-40GB:3g.20gb", 42, ())
    assert card.memory_total_bytes == 20096 * MiB
    assert card.torch_total_bytes is None
    assert card.context == derived_context(42)
    assert "lgip" in card.sources["memory_total_bytes"]


@pytest.mark.parametrize("name", ["A100:8g.99gb", "T4:1g.5gb"])
def test_an_unknown_mig_profile(name):
    with pytest.raises(UnknownName, match="no MIG profile of"):
        gpu_spec(name)


def test_no_instance_has_more_than_its_card():
    for card in all_gpu_specs():
        for each in card.mig:
            assert usable_bytes(card.instance(each.name)) <= usable_bytes(card), f"{card.name}:{each.name}"
