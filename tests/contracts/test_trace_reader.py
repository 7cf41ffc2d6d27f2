"""What every registered trace format honors, by its entry in the registry and its own example."""

from __future__ import annotations

import gzip

import pytest

from cotenant.core.errors import CotenantError, UnknownName, UsageError
from cotenant.sim import traces

NAMES = list(traces.FORMATS)


@pytest.fixture(params=NAMES)
def reader(request):
    return traces.FORMATS[request.param]


@pytest.fixture
def example(reader, tmp_path):
    path = tmp_path / reader.example_name
    path.write_text(reader.example)
    return path


def test_is_registered_under_its_name_with_a_line_for_people(reader):
    assert traces.FORMATS[reader.name] is reader
    assert 10 < len(reader.about) < 100


def test_reads_its_example_without_being_told_the_format(reader, example):
    found = traces.load(str(example))
    assert len(found) >= 2
    assert found.digest() == traces.load(str(example), format=reader.name).digest() == reader.read(example).digest()
    assert found.source == str(example)


def test_no_other_format_takes_its_example_first(reader, example):
    takers = [each.name for each in traces.FORMATS.values() if each.recognizes(example, reader.example)]
    assert takers[0] == reader.name


def test_jobs_are_in_order_from_zero_and_sound(reader, example):
    found = reader.read(example)
    moments = [job.submit_s for job in found]
    assert moments[0] == 0.0
    assert moments == sorted(moments)
    assert all(job.duration_s > 0 and job.gpus >= 1 for job in found)


def test_what_is_left_out_is_told(reader, example):
    """Every example has a line that is no job to replay."""
    assert any("left out" in each for each in reader.read(example).notes)


def test_gzipped_is_the_same(reader, example, tmp_path):
    packed = tmp_path / "packed" / f"{reader.example_name}.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(reader.example.encode()))
    assert reader.read(packed).digest() == reader.read(example).digest()


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe\x00garbage", b"a,b\n1,2\n", b"[]", b"[1, 2]"])
def test_damaged_files_are_errors_with_the_file_in_them(reader, tmp_path, damage):
    path = tmp_path / reader.example_name
    path.write_bytes(damage)
    with pytest.raises(CotenantError) as caught:
        reader.read(path)
    assert str(path) in caught.value.message


def test_cut_in_the_middle_is_an_error_or_fewer_jobs(reader, tmp_path):
    path = tmp_path / reader.example_name
    whole = len(traces.FORMATS[reader.name].example)
    path.write_text(reader.example[: whole // 2])
    try:
        found = reader.read(path)
    except CotenantError:
        return
    assert all(job.duration_s > 0 for job in found)


def test_a_file_that_is_not_there_is_an_error(reader, tmp_path):
    with pytest.raises(UsageError):
        reader.read(tmp_path / "absent.csv")


def test_unknown_names_are_told_with_what_is_known(tmp_path):
    with pytest.raises(UsageError, match="no trace named `heavy60`") as caught:
        traces.load("heavy60")
    assert caught.value.hint == "did you mean `heavy-60`?"
    path = tmp_path / "notes.txt"
    path.write_text("nothing of the kind")
    with pytest.raises(UsageError, match="is no trace of a known format"):
        traces.load(str(path))
    with pytest.raises(UnknownName, match="no trace format named `phily`"):
        traces.load(str(path), format="phily")
