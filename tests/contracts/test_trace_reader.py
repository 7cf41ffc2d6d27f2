"""What every registered trace format honors, tested with its own example."""

from __future__ import annotations

import gzip
import re

import pytest

from cotenant.core.errors import CotenantError, UnknownName, UsageError
from cotenant.sim import traces
from cotenant.sim.traces import TRACE_FORMATS


@pytest.fixture(params=TRACE_FORMATS.names())
def name(request):
    return request.param


@pytest.fixture
def trace_format(name):
    return TRACE_FORMATS.get(name)


@pytest.fixture
def example(trace_format, tmp_path):
    path = tmp_path / trace_format.example_name
    path.write_text(trace_format.example)
    return path


def test_its_name_and_its_help_fit_the_command_line(name, trace_format):
    assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name)
    assert re.fullmatch(r"[^\n`]{10,100}[^.\s]", trace_format.about)
    others = [TRACE_FORMATS.get(other).about for other in TRACE_FORMATS if other != name]
    assert trace_format.about not in others


def test_its_example_is_recognized_and_read(name, trace_format, example):
    assert traces.recognize(example) == name
    found = traces.load(str(example))
    assert len(found) >= 2
    assert found.digest() == traces.load(str(example), format=name).digest() == trace_format.read(example).digest()
    assert found.source == str(example)


def test_examples_of_other_formats_are_theirs(name, trace_format, tmp_path):
    for other in TRACE_FORMATS:
        theirs = TRACE_FORMATS.get(other)
        path = tmp_path / other / theirs.example_name
        path.parent.mkdir()
        path.write_text(theirs.example)
        assert traces.recognize(path) == other
        if other != name and not trace_format.is_generic:
            assert not trace_format.recognizes(path, theirs.example)


def test_jobs_are_sound_and_in_order_from_zero(trace_format, example):
    found = trace_format.read(example)
    submits_s = [job.submit_s for job in found]
    assert submits_s[0] == 0.0
    assert submits_s == sorted(submits_s)
    assert all(job.duration_s > 0 and job.gpus >= 1 for job in found)


def test_notes_count_the_rows_left_out(trace_format, example):
    """Every example has a row that cannot be replayed."""
    assert any(re.match(r"\d+ left out: \S", note) for note in trace_format.read(example).notes)


def test_a_gzipped_file_is_the_same_trace(name, trace_format, example, tmp_path):
    packed = tmp_path / "packed" / f"{trace_format.example_name}.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(trace_format.example.encode()))
    assert trace_format.read(packed).digest() == trace_format.read(example).digest()
    assert traces.load(str(packed), format=name).digest() == trace_format.read(example).digest()


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe\x00garbage", b"a,b\n1,2\n", b"[]", b"[1, 2]"])
def test_errors_of_damaged_files_name_the_file(trace_format, tmp_path, damage):
    path = tmp_path / trace_format.example_name
    path.write_bytes(damage)
    with pytest.raises(CotenantError) as caught:
        trace_format.read(path)
    assert str(path) in caught.value.message


def test_a_truncated_file_is_an_error_or_fewer_jobs(trace_format, example, tmp_path):
    whole = len(trace_format.read(example))
    path = tmp_path / "cut" / trace_format.example_name
    path.parent.mkdir()
    path.write_text(trace_format.example[: len(trace_format.example) // 2])
    try:
        found = trace_format.read(path)
    except CotenantError:
        return  # `test_errors_of_damaged_files_name_the_file` looks at messages
    assert 0 < len(found) < whole
    assert all(job.duration_s > 0 for job in found)


def test_a_missing_file_is_an_error(trace_format, tmp_path):
    with pytest.raises(UsageError, match=r"absent\.csv"):
        trace_format.read(tmp_path / "absent.csv")


def test_unknown_names_are_errors_that_list_the_known_ones(tmp_path):
    with pytest.raises(UsageError, match="no trace named `heavy60`") as caught:
        traces.load("heavy60")
    assert caught.value.hint == "did you mean `heavy-60`?"
    path = tmp_path / "notes.txt"
    path.write_text("no trace")
    with pytest.raises(UsageError, match=r"has no known trace format \(known: philly, .*columns") as caught:
        traces.load(str(path))
    assert caught.value.hint is not None
    assert caught.value.hint.endswith("a CSV of your own has the columns submit_s, duration_s and n_gpus")
    with pytest.raises(UnknownName, match="no trace format named `phily`"):
        traces.load(str(path), format="phily")
