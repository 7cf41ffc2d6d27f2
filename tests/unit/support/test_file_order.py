"""The order in which processes of xdist get files of tests."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("xdist")

from file_order import LONG, LongFilesFirst, sorted_by_length

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("folder", LONG)
def test_folders_of_long_tests_are_there(folder):
    assert (ROOT / folder).is_dir()


def test_files_on_slurm_are_first_then_long_ones_then_those_with_many_tests():
    files = {
        "tests/unit/test_a.py": 9,
        "tests/e2e/test_b.py": 1,
        "tests/unit/test_c.py": 10,
        "tests/conformance/test_d.py": 2,
        "tests/e2e/test_e.py": 3,
    }
    items = [
        SimpleNamespace(nodeid=f"{file}::test_{number}")
        for number in range(10)
        for file in files
        if number < files[file]
    ]
    found = [item.nodeid for item in sorted_by_length(items)]
    assert list(dict.fromkeys(nodeid.partition("::")[0] for nodeid in found)) == [
        "tests/conformance/test_d.py",
        "tests/e2e/test_e.py",
        "tests/e2e/test_b.py",
        "tests/unit/test_c.py",
        "tests/unit/test_a.py",
    ]
    assert found[:2] == ["tests/conformance/test_d.py::test_0", "tests/conformance/test_d.py::test_1"]


def test_files_on_slurm_go_to_one_process_and_others_one_by_one():
    scope_of = object.__new__(LongFilesFirst)._split_scope
    assert {scope_of(f"tests/{file}.py::test_x[1]") for file in ("needs_slurm/test_a", "conformance/test_b")} == {
        "Slurm"
    }
    assert scope_of("tests/e2e/test_a.py::test_x[a::b]") == "tests/e2e/test_a.py"
