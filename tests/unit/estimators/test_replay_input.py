"""What a trace is replayed with: settings of the environment and of the script, and the memory of a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cotenant.core.errors import UsageError
from cotenant.core.units import MiB
from cotenant.estimators.replay_input import blas_of, make_replay_input, make_software_stack, software_stack
from cotenant.gpu_specs import gpu_spec
from traces import HEADER, a_trace, alloc

OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
LOADING = "CUDA_MODULE_LOADING"
SPLIT, EXPAND = "max_split_size_mb:128", "expandable_segments:True"


@pytest.mark.parametrize(
    ("before", "after", "env", "expected"),
    [
        pytest.param({}, {}, {}, "", id="none"),
        pytest.param({}, {}, {OLD: SPLIT}, SPLIT, id="of the environment now"),
        pytest.param({OLD: SPLIT}, {OLD: SPLIT}, {OLD: EXPAND}, EXPAND, id="not of the environment then"),
        pytest.param({}, {OLD: EXPAND}, {}, EXPAND, id="of the script"),
        pytest.param({OLD: SPLIT}, {OLD: EXPAND}, {OLD: SPLIT}, EXPAND, id="of the script over the environment"),
        pytest.param({}, {}, {NEW: EXPAND, OLD: SPLIT}, SPLIT, id="the older name counts first"),
    ],
)
def test_settings_of_the_environment_apply_unless_the_script_set_them(before, after, env, expected):
    header = replace(HEADER, settings_before=before, settings=after)
    assert software_stack(header, env=env).alloc_conf == expected


def test_a_trace_without_an_environment_has_its_own_settings():
    assert software_stack(replace(HEADER, settings={OLD: SPLIT})).alloc_conf == SPLIT
    assert software_stack(replace(HEADER, alloc_conf=SPLIT, cublas_workspace_config=":16:8")).cublas_config == ":16:8"


def test_another_allocator_backend_adds_a_warning():
    stack = make_software_stack("2.13.0", f"backend:cudaMallocAsync,{EXPAND}")
    assert stack.options.expandable_segments
    assert "cudaMallocAsync" in stack.warnings[0]


def test_a_newer_torch_adds_a_warning():
    assert "newer" in make_software_stack("9.1.0", "").warnings[0]
    assert make_software_stack("2.13.0", "").warnings == ()


def test_settings_that_torch_refuses_are_refused():
    with pytest.raises(UsageError, match="no_such"):
        make_software_stack("2.13.0", "no_such:1")


@pytest.mark.parametrize(
    ("gpu", "driver_mib"),
    [
        pytest.param("RTX3060-12GB", 12288 - 12037.4375, id="read by CUDA"),
        pytest.param("V100-32GB", int(0.015 * 32768 * MiB) / MiB, id="a share of a large card"),
        pytest.param("V100-16GB", 256, id="at least so much"),
        pytest.param("A100-40GB:3g.20gb", 0, id="a MIG instance has what it has"),
    ],
)
def test_usable_bytes_exclude_what_the_driver_reserves(gpu, driver_mib):
    known = gpu_spec(gpu)
    assert known.memory_total_bytes - known.usable_bytes == pytest.approx(driver_mib * MiB, abs=MiB / 2)


def test_a_memory_fraction_limits_only_where_there_is_a_limit():
    gpu = gpu_spec("A100-40GB")
    trace = a_trace([alloc(0, 1000)], alloc_conf="per_process_memory_fraction:0.01")
    replay_input = make_replay_input(trace, gpu, software_stack(trace.header))
    assert replay_input.replay().oom is None
    assert replay_input.replay(gpu.usable_bytes).oom is not None


@pytest.mark.parametrize(
    ("settings", "eager"),
    [
        pytest.param({}, False, id="default"),
        pytest.param({LOADING: "EAGER"}, True, id="eager"),
        pytest.param({LOADING: "LAZY"}, False, id="lazy"),
        pytest.param({LOADING: "DEFAULT"}, False, id="default by name"),
    ],
)
def test_kernels_are_loaded_at_once_where_requested(settings, eager):
    stack = software_stack(replace(HEADER, settings=settings))
    assert stack.loads_eagerly is eager
    kept = make_replay_input(a_trace([alloc(0, 1)]), gpu_spec("A100-40GB"), stack).with_settings(EXPAND)
    assert kept.stack.loads_eagerly is eager


@pytest.mark.parametrize(("text", "cached"), [("1", True), ("0", False), (None, False)])
def test_workspaces_of_cublas_are_cached_where_requested(text, cached):
    settings = {} if text is None else {"TORCH_CUBLAS_WORKSPACE_CACHE": text}
    stack = software_stack(replace(HEADER, settings=settings), torch_version="2.15.0")
    kept = make_replay_input(a_trace([alloc(0, 1)]), gpu_spec("A100-40GB"), stack).with_settings(EXPAND)
    assert [blas_of(gpu_spec("A100-40GB"), made).per_call for made in (stack, kept.stack)] == [not cached] * 2


def test_a_script_that_sets_its_loading_overrides_the_environment():
    header = replace(HEADER, settings_before={}, settings={LOADING: "EAGER"})
    assert software_stack(header, env={}).loads_eagerly
    assert software_stack(replace(header, settings={}), env={LOADING: "EAGER"}).loads_eagerly
