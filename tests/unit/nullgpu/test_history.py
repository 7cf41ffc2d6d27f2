"""Histories of the null GPU on disk."""

from __future__ import annotations

import gzip
import json

import pytest

from cotenant.nullgpu import NullGpuError, RequestHistory, read_history, write_history

HISTORY = RequestHistory((512, 1024, -1, 7), ("forward (model.py:3)", "step (adam.py:9)"), (0, 1, 0))


def test_history_has_sizes_and_places_of_its_allocations():
    assert HISTORY.allocations == (512, 1024, 7)
    assert [HISTORY.place(index) for index in range(4)] == [
        "forward (model.py:3)",
        "step (adam.py:9)",
        "forward (model.py:3)",
        "",
    ]


def test_a_history_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "history.json.gz"
    write_history(path, HISTORY, {"job": "mlp.py"}, with_places=True)
    assert read_history(path) == (HISTORY, {"job": "mlp.py"})
    write_history(path, HISTORY, {"job": "mlp.py"})
    assert read_history(path) == (RequestHistory(HISTORY.events), {"job": "mlp.py"})
    assert [file.name for file in tmp_path.iterdir()] == ["history.json.gz"]


def test_equal_histories_have_equal_bytes(tmp_path):
    paths = [tmp_path / name for name in ("one.gz", "two.gz")]
    for path in paths:
        write_history(path, HISTORY, {"job": "mlp.py"})
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param({"format": 2, "events": []}, "has format 2, wanted 1", id="another format"),
        pytest.param({"format": 1, "events": [512, 0]}, "an event that is no size and no free", id="a size of 0"),
        pytest.param({"format": 1, "events": ["512"]}, "an event that is no size and no free", id="a text"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    path = tmp_path / "history.json.gz"
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    with pytest.raises(NullGpuError, match=message):
        read_history(path)
