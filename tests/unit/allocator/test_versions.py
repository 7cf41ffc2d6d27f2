"""The version table: the row of a version, and the rules in it."""

from __future__ import annotations

import itertools

import pytest

from cotenant.allocator import rules_for
from cotenant.allocator.versions import RULES_BY_VERSION
from cotenant.core.errors import UsageError


@pytest.mark.parametrize(
    ("version", "since"),
    [
        ("2.4", (2, 4)),
        ("2.5.1+cu121", (2, 4)),
        ("2.6.0", (2, 6)),
        ("2.9.1", (2, 9)),
        ("v2.10.0", (2, 10)),
        ("2.11.0+cu128", (2, 11)),
        ("2.14.0a0+gitabcdef", (2, 13)),
        ("2.15.0", (2, 15)),
    ],
)
def test_a_version_has_the_rules_of_its_row(version, since):
    rules = rules_for(version)
    assert rules.since == since
    assert not rules.beyond_table


@pytest.mark.parametrize("version", ["2.16.0", "3.0"])
def test_a_version_newer_than_the_table_is_marked(version):
    rules = rules_for(version)
    assert rules.beyond_table
    assert rules.option_keys == RULES_BY_VERSION[-1].option_keys


@pytest.mark.parametrize("version", ["2.3.1", "1.13"])
def test_a_version_older_than_the_table_is_refused(version):
    with pytest.raises(UsageError, match="is not modeled"):
        rules_for(version)


@pytest.mark.parametrize("version", ["", "nightly", "2"])
def test_text_that_is_no_version_is_refused(version):
    with pytest.raises(UsageError, match="is not a version of torch"):
        rules_for(version)


def test_the_table_is_in_order_and_names_its_sources():
    assert [row.since for row in RULES_BY_VERSION] == sorted({row.since for row in RULES_BY_VERSION})
    assert all(row.sources for row in RULES_BY_VERSION)


def test_later_versions_have_all_earlier_keys():
    for older, newer in itertools.pairwise(RULES_BY_VERSION):
        assert older.option_keys <= newer.option_keys


@pytest.mark.parametrize(
    ("key", "first"),  # headers of the wheels before and after
    [
        ("max_non_split_rounding_mb", (2, 6)),
        ("per_process_memory_fraction", (2, 10)),
        ("large_segment_size_mb", (2, 11)),
        ("throw_on_cudamalloc_oom", (2, 12)),
        ("expandable_segments_reserve", (2, 15)),
    ],
)
def test_the_version_in_which_a_key_appears(key, first):
    assert min(row.since for row in RULES_BY_VERSION if key in row.option_keys) == first
