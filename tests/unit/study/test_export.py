"""Exports of a study: a database, and Parquet where pyarrow is."""

import sqlite3

import pytest

from cotenant.core.errors import UsageError
from cotenant.core.gpu import GpuSample
from cotenant.measurement.collocation import COLUMNS
from cotenant.measurement.job_list import JobGroup
from cotenant.measurement.result_table import ResultTable, write_samples
from cotenant.study.export import runs_of, to_parquet, to_sqlite


@pytest.fixture
def study(tmp_path):
    """A folder with two rows of one group, with samples, and one row that failed, without."""
    folder = tmp_path / "out"
    folder.mkdir()
    table = ResultTable(folder / "collocation.csv", tuple(COLUMNS))
    group = JobGroup(jobs=("a", "b"), sharing="mps:30")
    common = {"group": group.name, "sharing": group.sharing, "repeat": 1, "outcome": "ok", "gpu": "A100"}
    table.add({**common, "position": 1, "job": "a", "step_s": 0.25})
    table.add({**common, "position": 2, "job": "b", "step_s": "nan"})
    table.add({**common, "repeat": 2, "outcome": "oom", "message": "CUDA out of memory"})
    place = folder / group.folder / group.run_folder(1)
    place.mkdir(parents=True)
    write_samples(place / "gpu.csv", [GpuSample(at_s=100.0 + i, smact=i / 10, used_bytes=2**30) for i in range(3)])
    return folder


def test_runs_have_their_samples_over_time(study):
    first, second, failed = runs_of(study)
    assert (first.fields["job"], first.fields["step_s"], first.fields["message"]) == ("a", 0.25, None)
    assert second.fields["step_s"] == "nan", "a number without a value stays text"
    assert [sample["smact"] for sample in first.samples] == [0.0, 0.1, 0.2]
    assert failed.samples == ()


def test_a_folder_without_a_study_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no study in"):
        runs_of(tmp_path)


def test_a_database_has_a_table_of_runs_and_one_of_samples(study, tmp_path):
    path = tmp_path / "study.sqlite"
    to_sqlite(runs_of(study), path)
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT run, job, step_s FROM collocation").fetchall() == [
            (1, "a", 0.25), (2, "b", "nan"), (3, None, None),
        ]  # fmt: skip
        query = "SELECT max(smact), count(*) FROM samples WHERE study = 'collocation' AND run = 2"
        assert database.execute(query).fetchone() == (0.2, 3)
    database.close()
    with pytest.raises(UsageError, match="exists already"):
        to_sqlite(runs_of(study), path)


def test_parquet_has_the_same_rows(study, tmp_path):
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    written = to_parquet(runs_of(study), tmp_path / "tables")
    assert sorted(path.name for path in written) == ["collocation.parquet", "samples.parquet"]
    assert parquet.read_table(tmp_path / "tables" / "collocation.parquet").column("job").to_pylist() == ["a", "b", None]
    assert parquet.read_table(tmp_path / "tables" / "samples.parquet").num_rows == 6
