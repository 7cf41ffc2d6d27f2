"""Dates of a made-up table: texts of the format by which the script that reads it parses them, or dates."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.data.tables.table_dates import date_column, format_of


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="needs pandas")
@pytest.mark.parametrize(
    ("function", "options", "is_text"),
    [
        pytest.param("read_csv", {}, True, id="a file of text"),
        pytest.param("read_table", {"parse_dates": False}, True, id="not parsed"),
        pytest.param("read_csv", {"parse_dates": ["date"]}, False, id="parsed"),
        pytest.param("read_csv", {"converters": {"date": str}}, False, id="converted"),
        pytest.param("read_parquet", {}, False, id="a file with types"),
    ],
)
def test_dates_of_a_file_of_text_are_texts_unless_they_are_parsed(tmp_path, function, options, is_text):
    column = list(date_column(function, options, str(tmp_path / "none.py"), 2))
    assert (column == ["2016-01-01 00:00:00", "2016-01-01 01:00:00"]) is is_text
    assert [str(date) for date in column] == ["2016-01-01 00:00:00", "2016-01-01 01:00:00"]


@pytest.mark.parametrize(
    ("source", "date_format"),
    [
        pytest.param('pandas.to_datetime(table.date, format="%d/%m/%Y %H:%M")', "%d/%m/%Y %H:%M", id="to_datetime"),
        pytest.param('table.date.map(lambda day: datetime.strptime(day, "%Y%m%d"))', "%Y%m%d", id="strptime"),
        pytest.param('now().strftime("%Y%m%d")', "%Y-%m-%d %H:%M:%S", id="written, not read"),
        pytest.param('to_datetime(x, format="mixed")', "%Y-%m-%d %H:%M:%S", id="no format"),
        pytest.param('strptime(x, "%Y")\nstrptime(x, "%d")', "%Y-%m-%d %H:%M:%S", id="two formats"),
    ],
)
def test_dates_are_of_the_format_by_which_the_reader_parses_them(tmp_path, source, date_format):
    (script := tmp_path / "read.py").write_text(source)
    assert format_of(str(script)) == date_format
