"""Settings are read as torch reads them, version by version.

Every row with a version was tried on the library of that wheel (see `allocator/versions.py`), without a GPU.
"""

from __future__ import annotations

import pytest

from cotenant.allocator import AllocatorOptions, parse_options, settings_text
from cotenant.core.errors import UsageError
from cotenant.core.units import MiB

OLD, NEW = "2.9.1", "2.13.0"


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize(
    ("text", "options"),
    [
        pytest.param("", AllocatorOptions(), id="nothing"),
        pytest.param("expandable_segments:True", AllocatorOptions(expandable_segments=True), id="expandable"),
        pytest.param("expandable_segments:False", AllocatorOptions(), id="not expandable"),
        pytest.param(" max_split_size_mb : 64 ", AllocatorOptions(max_split_bytes=64 * MiB), id="blanks"),
        pytest.param(
            "max_split_size_mb:21,garbage_collection_threshold:0.8",
            AllocatorOptions(max_split_bytes=21 * MiB, garbage_collection_threshold=0.8),
            id="two",
        ),
        pytest.param("expandable_segments:True,", AllocatorOptions(expandable_segments=True), id="comma at the end"),
        pytest.param("max_split_size_mb:64mb", AllocatorOptions(max_split_bytes=64 * MiB), id="text after a number"),
        pytest.param(
            "max_non_split_rounding_mb:30",
            AllocatorOptions(max_non_split_rounding_bytes=30 * MiB),
            id="rounding of oversize blocks",
        ),
        pytest.param(
            "roundup_power2_divisions:4", AllocatorOptions(roundup_power2_divisions=(4,) * 16), id="one division"
        ),
        pytest.param(
            "backend:native,pinned_use_cuda_host_register:True,pinned_num_register_threads:8,"
            "release_lock_on_cudamalloc:False,pinned_use_background_threads:True",
            AllocatorOptions(),
            id="host memory: no effect here",
        ),
    ],
)
def test_settings_that_every_version_accepts(version, text, options):
    assert parse_options(text, version) == options


@pytest.mark.parametrize(
    ("version", "last_listed"),
    [("2.4.1", 1), ("2.5.1", 1), ("2.6.0", 1), ("2.8.0", 1), ("2.9.1", 1), ("2.10.0", 4), ("2.13.0", 4)],
)
def test_the_rest_of_a_list_begins_where_the_version_says(version, last_listed):
    text = "roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]"
    divisions = parse_options(text, version).roundup_power2_divisions
    assert divisions == (8, 8, 8, 8, 8, 8, 8, 2, 4, 2, last_listed, 1, 1, 1, 1, 1)


def test_a_list_without_a_rest_does_not_affect_larger_sizes():
    assert parse_options("roundup_power2_divisions:[2:4]", NEW).roundup_power2_divisions == (4, 4, *(0,) * 14)


@pytest.mark.parametrize("boundary", [32768, 65536, 2**40])
def test_a_boundary_beyond_the_last_interval_sets_all_intervals(boundary):
    divisions = parse_options(f"roundup_power2_divisions:[{boundary}:2]", NEW).roundup_power2_divisions
    assert divisions == (2,) * 16


@pytest.mark.parametrize(
    ("text", "refusing", "accepting"),
    [
        pytest.param("max_split_size_mb:20", ["2.4.1", "2.9.1"], ["2.10.0", "2.13.0"], id="as large as a segment"),
        pytest.param("max_non_split_rounding_mb:20", ["2.6.0", "2.9.1"], ["2.10.0"], id="the same, rounding"),
        pytest.param("max_split_size_mb,64", ["2.4.1", "2.9.1"], ["2.10.0", "2.13.0"], id="wrong separator"),
        pytest.param("max_non_split_rounding_mb:30", ["2.4.1", "2.5.1"], ["2.6.0"], id="key of 2.6"),
        pytest.param("graph_capture_record_stream_reuse:True", ["2.8.0"], ["2.9.1"], id="key of 2.9"),
        pytest.param("per_process_memory_fraction:0.5", ["2.9.1"], ["2.10.0"], id="key of 2.10"),
        pytest.param("large_segment_size_mb:30", ["2.10.0"], ["2.11.0"], id="key of 2.11"),
        pytest.param("throw_on_cudamalloc_oom:True", ["2.11.0"], ["2.12.0"], id="key of 2.12"),
        pytest.param("pinned_max_cached_size_mb:8", ["2.12.0"], ["2.13.0"], id="key of 2.13"),
        pytest.param("expandable_segments_reserve_by_class:[a:0.5,b:40G]", ["2.14.1"], ["2.15.0"], id="key of 2.15"),
        pytest.param(f"max_split_size_mb:{2**31}", ["2.9.1"], ["2.10.0"], id="more than 32 bits"),
        pytest.param("expandable_segments:\tTrue", ["2.9.1"], ["2.10.0"], id="tab"),
    ],
)
def test_settings_that_only_some_versions_accept(text, refusing, accepting):
    for version in refusing:
        with pytest.raises(UsageError):
            parse_options(text, version)
    for version in accepting:
        parse_options(text, version)


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("foo:1", "has no allocator setting `foo`"),
        (",", "has no allocator setting `,`"),
        ("max_split_size_mb:10", r"`max_split_size_mb`: found 10, .* requires 2[01] or more"),
        ("max_split_size_mb:abc", "found `abc`, .* requires a number"),
        ("max_split_size_mb:", "found nothing"),
        ("max_split_size_mb", "found nothing"),
        ("max_split_size_mb=64", "has no allocator setting `max_split_size_mb=64`"),
        ("expandable_segments:true", "found `true`, .* requires `True` or `False`"),
        ("garbage_collection_threshold:0", "requires a ratio between 0 and 1"),
        ("garbage_collection_threshold:1", "requires a ratio between 0 and 1"),
        ("garbage_collection_threshold:x", "requires a ratio between 0 and 1"),
        ("roundup_power2_divisions:0", "divisions 0"),
        ("roundup_power2_divisions:3", "divisions 3"),
        ("roundup_power2_divisions:[64:3]", "divisions 3"),
        ("roundup_power2_divisions:[48:2]", "interval 48"),
        ("roundup_power2_divisions:[256:1", "found nothing"),
        ("pinned_num_register_threads:3", "threads 3"),
        ("pinned_num_register_threads:256", "requires 128 or fewer"),
        ("backend:foo", "found `foo`"),
        ("backend:cudaMallocAsync", "is not modeled"),
    ],
)
def test_invalid_settings_are_refused(version, text, message):
    with pytest.raises(UsageError, match=message):
        parse_options(text, version)


@pytest.mark.parametrize("text", ["large_segment_size_mb:10", "large_segment_size_mb:0"])
def test_a_large_segment_must_exceed_10_mib(text):
    with pytest.raises(UsageError, match="requires 11 or more"):
        parse_options(text, NEW)


@pytest.mark.parametrize("key", ["max_split_size_mb", "max_non_split_rounding_mb"])
def test_the_large_segment_is_read_first(key):
    for text in (f"large_segment_size_mb:30,{key}:25", f"{key}:25,large_segment_size_mb:30"):
        with pytest.raises(UsageError, match="requires 30 or more"):
            parse_options(text, NEW)
    assert parse_options(f"{key}:30,large_segment_size_mb:30", NEW).large_segment_bytes == 30 * MiB


def test_rounding_follows_the_large_segment():
    assert parse_options("large_segment_size_mb:30", NEW).max_non_split_rounding_bytes == 30 * MiB


@pytest.mark.parametrize("version", [OLD, NEW])
def test_negative_sizes_wrap_as_in_cpp(version):
    assert parse_options("max_split_size_mb:-1", version).max_split_bytes > 2**63


@pytest.mark.parametrize("text", ["per_process_memory_fraction:1.1", "per_process_memory_fraction:-0.1"])
def test_a_fraction_out_of_range_is_refused(text):
    with pytest.raises(UsageError, match="requires a ratio from 0 to 1"):
        parse_options(text, NEW)


@pytest.mark.parametrize(
    ("version", "environment", "text"),
    [
        ("2.9.1", {"PYTORCH_ALLOC_CONF": "a"}, ""),
        ("2.9.1", {"PYTORCH_CUDA_ALLOC_CONF": "b", "PYTORCH_ALLOC_CONF": "a"}, "b"),
        ("2.10.0", {"PYTORCH_ALLOC_CONF": "a"}, "a"),
        ("2.10.0", {"PYTORCH_CUDA_ALLOC_CONF": "b", "PYTORCH_ALLOC_CONF": "a"}, "b"),
        ("2.13.0", {}, ""),
    ],
)
def test_the_environment_variable_depends_on_the_version(version, environment, text):
    assert settings_text(environment, version) == text
