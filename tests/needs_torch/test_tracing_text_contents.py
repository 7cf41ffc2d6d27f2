"""What a script fetches from an address: the code that fetches it says the form."""

from __future__ import annotations

import gzip
import json
import sys

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.data.text import text_contents


def by_line():
    for _ in map(json.loads, "".splitlines()):
        pass
    return sys._getframe()


def in_a_loop():
    for line in "".splitlines():
        json.loads(line)
    return sys._getframe()


def whole(response=None):
    return sys._getframe() if response is None else response.json()


def unpacked(data=None):
    return sys._getframe() if data is None else [json.loads(line) for line in gzip.decompress(data).splitlines()]


def of_text():
    return sys._getframe()


@pytest.mark.parametrize(
    ("url", "reader", "rows"),
    [
        pytest.param("https://example.org/data/emotions", by_line, 1000, id="map"),
        pytest.param("https://example.org/data/emotions?v=1.2", in_a_loop, 1000, id="a loop"),
        pytest.param("https://example.org/rows.jsonl", of_text, 1000, id="a name of rows"),
        pytest.param("https://example.org/data/emotions", whole, 1, id="one list"),
        pytest.param("https://example.org/alpaca.json", of_text, 1, id="a name of a list"),
    ],
)
def test_rows_of_json_are_fetched(url, reader, rows):
    found = text_contents.fetched(url, 30, reader()).decode().strip().split("\n")
    assert len(found) == rows
    assert isinstance(json.loads(found[0]), dict if rows > 1 else list)


@pytest.mark.parametrize(
    ("url", "reader"),
    [("https://example.org/data/emotions", unpacked), ("https://example.org/rows.jsonl.gz", by_line)],
)
def test_packed_rows_are_fetched(url, reader):
    assert len(gzip.decompress(text_contents.fetched(url, 30, reader())).splitlines()) == 1000


def test_a_text_is_fetched_by_its_name_alone():
    assert len(set(text_contents.fetched("https://example.org/input.txt", 30, of_text()).split())) == 30
    assert text_contents.fetched("https://example.org/input", 30, of_text()) is None
    assert text_contents.fetched("https://example.org/model.onnx", 30, whole()) is None
