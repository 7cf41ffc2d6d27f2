"""The memory that a change of settings would save."""

from __future__ import annotations

import json

import pytest

from cotenant.core.units import MiB
from cotenant.estimators.cudnn.query import CudnnQuery, CudnnWorkspaces, query_of
from cotenant.estimators.traced import TracedEstimator
from cotenant.estimators.whatif import merged, notes_on, what_if, with_8bit_states
from cotenant.gpu_specs import gpu_spec
from traces import a_trace, alloc, call, conv_call, free, steps

GPU = gpu_spec("A100-40GB")


def changes(trace):
    result = TracedEstimator().on(trace, GPU)
    return result, {saving.name: saving for saving in what_if(result)}


def fragmented():
    """400 MiB in pieces of 100, cached, when 500 MiB are requested."""
    pieces = [*(alloc(i, 100) for i in range(4)), *(free(i) for i in range(4))]
    return a_trace([*pieces, alloc(9, 500, "temporary", "step")])


def test_expandable_segments_save_fragmented_memory():
    result, found = changes(fragmented())
    assert result.fit.reserved_bytes == 900 * MiB
    change = found["expandable_segments:True"]
    assert change.peak_reserved_bytes == 500 * MiB
    assert change.saves_bytes == result.fit.bound_bytes - change.bound_bytes > 390 * MiB
    assert not change.assumed


def test_garbage_collection_alone_changes_nothing():
    assert changes(fragmented())[1]["garbage_collection_threshold:0.8"].saves_bytes == 0


def test_a_setting_that_costs_memory_saves_a_negative_amount():
    # 80 MiB blocks may not be split off one of 200 MiB any more.
    trace = a_trace([alloc(0, 200), free(0), alloc(1, 80), alloc(2, 80)])
    assert changes(trace)[1]["max_split_size_mb:128"].saves_bytes < 0


def test_a_change_retains_the_settings_in_force():
    conf = "roundup_power2_divisions:[256:1,>:8],expandable_segments:False"
    assert merged(conf, "expandable_segments:True") == "roundup_power2_divisions:[256:1,>:8],expandable_segments:True"
    assert merged(conf, "roundup_power2_divisions:8") == "expandable_segments:False,roundup_power2_divisions:8"
    assert merged("", "max_split_size_mb:128") == "max_split_size_mb:128"


def test_8bit_states_shrink_to_a_quarter_and_their_scales():
    result, found = changes(steps(batch_mib=100))
    saved = 4 * 200 * MiB * (1 - 0.25 - 1 / 256)
    assert found["8-bit optimizer states"].assumed
    assert result.estimate.peak_allocated_bytes - found["8-bit optimizer states"].peak_allocated_bytes == pytest.approx(
        saved, rel=0.01
    )


@pytest.mark.parametrize(
    ("nbytes", "category", "left"),
    [
        pytest.param(4096 * 4, "optimizer state", 4096 + 16 * 4, id="from 4096 values on"),
        pytest.param(4095 * 4, "optimizer state", 4095 * 4, id="fewer stay"),
        pytest.param(4097 * 4, "optimizer state", 4097 + 17 * 4, id="a scale for a block begun"),
        pytest.param(4096 * 4, "gradient", 4096 * 4, id="nothing else"),
    ],
)
def test_8bit_states_have_one_byte_per_value_and_scales(nbytes, category, left):
    event = alloc(0, 0, category)._replace(bytes=nbytes)
    assert with_8bit_states(a_trace([event])).events[0].bytes == left


def test_smaller_states_in_the_same_segments_cost_nothing():
    # Segments of 600 and 700 MiB are there before the first state.
    events = [alloc(0, 600), free(0), alloc(1, 700), free(1)]
    result, found = changes(a_trace([*events, alloc(2, 590, "optimizer state", "step"), alloc(3, 690)]))
    change = found["8-bit optimizer states"]
    assert change.peak_reserved_bytes == result.fit.reserved_bytes
    assert change.peak_allocated_bytes < result.replay.peak_allocated_bytes
    assert change.saves_bytes == 0


def test_answers_of_the_jobs_cudnn_apply_to_changes_too():
    """Its margin is that of known convolutions, also under other settings."""
    call_of = conv_call(x=[32, 63, 40, 40], w=[65, 63, 3, 3])
    key = json.dumps(query_of(call_of, (8, 0)), sort_keys=True, separators=(",", ":"))
    known = CudnnWorkspaces(version=91002, capability=(8, 0), found={key: [0]})

    class CountingEstimator(TracedEstimator):
        def _query_cudnn(self, recorded, gpu):
            return CudnnQuery(workspaces=known)

    trace = a_trace([alloc(0, 500), call(0)], [call_of])
    result = CountingEstimator().on(trace, GPU)
    assert result.fit.bound_bytes != TracedEstimator().on(trace, GPU).fit.bound_bytes
    found = {saving.name: saving.saves_bytes for saving in what_if(result)}
    assert found["garbage_collection_threshold:0.8"] == 0


def test_only_a_table_with_a_star_explains_it():
    _, found = changes(a_trace([alloc(1, 100, "optimizer state", "step")]))
    plain, starred = found["expandable_segments:True"], found["8-bit optimizer states"]
    assert [line[:12] for line in notes_on([plain, starred])] == ["* optimizer ", "not computed"]
    assert [line[:12] for line in notes_on([plain])] == ["not computed"]


def test_without_optimizer_states_no_8bit_saving_is_listed():
    assert "8-bit optimizer states" not in changes(fragmented())[1]


def test_settings_that_torch_does_not_know_are_left_out():
    trace = fragmented()
    old = changes(a_trace(trace.events, torch_version="2.4.0"))[1]
    assert "expandable_segments:True" in old


def test_other_settings_of_the_job_count():
    _, found = changes(a_trace(fragmented().events, alloc_conf="expandable_segments:True"))
    assert found["expandable_segments:True"].saves_bytes == 0
    assert found["max_split_size_mb:128"].peak_reserved_bytes == 500 * MiB
