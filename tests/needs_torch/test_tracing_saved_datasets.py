"""Folders of `datasets` whose tables are missing: the columns of `dataset_info.json`, by stand-ins of the library."""

from __future__ import annotations

import json
import types

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.data.data_options import SyntheticSample
from cotenant.tracing.data.tables import saved_datasets
from cotenant.tracing.data.tables.column_values import ColumnMaker
from cotenant.tracing.data.tables.synthetic_hf_datasets import LoadedTables

SAMPLES = [SyntheticSample(shape=(8,), dtype="int64", classes=30000)]
MAKER = ColumnMaker.of(SAMPLES)


class Value:
    def __init__(self, dtype):
        self.dtype = dtype


class ClassLabel:
    def __init__(self, num_classes):
        self.num_classes = num_classes


class Sequence:
    def __init__(self, feature, length=-1):
        self.feature, self.length = feature, length


class Translation:
    languages = ("de", "en")


STRING, INT = Value("string"), Value("int32")


@pytest.mark.parametrize(
    ("name", "feature", "expected"),
    [
        pytest.param("text", Value("large_string"), "word word word word word word word time", id="a text"),
        pytest.param("id", STRING, "1", id="a number as text"),
        pytest.param("id", Value("int64"), 1, id="a number"),
        pytest.param("score", Value("float32"), 1.0, id="a score"),
        pytest.param("is_good", Value("bool"), False, id="a choice"),
        pytest.param("day", Value("timestamp[s]"), None, id="a date"),
        pytest.param("label", ClassLabel(1), 0, id="a class"),
        pytest.param("translation", Translation(), dict.fromkeys(("de", "en"), MAKER.words(row=1)), id="languages"),
        pytest.param("ner_tags", Sequence(ClassLabel(3)), [0, 1, 2, 0, 1, 2, 0, 1], id="tags of words"),
        pytest.param("tokens", Sequence(STRING), MAKER.words(row=1).split(), id="words"),
        pytest.param("input_ids", [INT], [at % 10 for at in range(8)], id="tokens as numbers"),
        pytest.param("box", Sequence(Value("float64"), length=4), [1.0] * 4, id="a fixed length"),
        pytest.param("choice", [STRING], [MAKER.words(4, 1)] * 4, id="texts that share the words"),
        pytest.param(
            "answers", Sequence({"text": STRING, "answer_start": INT}), {"text": ["word"], "answer_start": [0]},
            id="a sequence of rows",
        ),
        pytest.param(
            "messages", [{"role": STRING, "value": STRING}],
            [{"role": "user", "value": ""}, {"role": "assistant", "value": ""}], id="a chat",
        ),
    ],
)  # fmt: skip
def test_a_column_has_the_values_of_its_type(name, feature, expected):
    assert saved_datasets.columns_of({name: feature}, MAKER, 2)[name][1] == expected


def test_the_answer_is_one_of_the_choices():
    columns = saved_datasets.columns_of({"answer": STRING, "choice": [STRING]}, MAKER, 3)
    assert all(answer in choices for answer, choices in zip(columns["answer"], columns["choice"], strict=True))


def test_a_question_is_shorter_than_its_context():
    maker = ColumnMaker.of([SyntheticSample(shape=(64,), dtype="int64", classes=30000)])
    columns = saved_datasets.columns_of({"context": STRING, "question": STRING, "choice": [STRING]}, maker, 1)
    assert [len(columns[name][0].split()) for name in ("context", "question")] == [64, 4]
    assert [len(choice.split()) for choice in columns["choice"][0]] == [1] * 4
    assert len(saved_datasets.columns_of({"question": STRING}, maker, 1)["question"][0].split()) == 64


class Table:
    @classmethod
    def from_dict(cls, columns, features):
        made = cls()
        made.columns, made.features = columns, features
        return made


class Features(dict):
    @classmethod
    def from_dict(cls, described):
        return cls({name: Value(kind["dtype"]) for name, kind in described.items()})


@pytest.fixture
def load(monkeypatch):
    """`load_from_disk` of a library that finds no tables; what it warned of, and the tables that it counted."""
    library = types.SimpleNamespace(Features=Features, Dataset=Table, DatasetDict=dict)
    monkeypatch.setitem(saved_datasets.sys.modules, "datasets", library)
    monkeypatch.setattr(saved_datasets, "made_up", [])  # of the process: later tests trace in forks of it
    tables, warned = LoadedTables(), []

    def absent(path):
        raise FileNotFoundError(path)

    patch = saved_datasets.patches(SAMPLES, tables, warned.append)[0]
    return patch.replacement(absent).__func__, warned, tables


def test_a_folder_without_its_tables_has_the_columns_that_it_describes(tmp_path, load):
    (tmp_path / "train").mkdir()
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    (tmp_path / "train/dataset_info.json").write_text(json.dumps({"features": {"title": {"dtype": "string"}}}))
    load_from_disk, warned, tables = load
    found = load_from_disk(str(tmp_path))
    assert list(found["train"].columns) == ["title"]
    assert len(found["train"].columns["title"]) == 1000
    assert warned == [f"the data set `{tmp_path}`"]
    assert tables.only_synthetic()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        pytest.param("", "", id="none"),
        pytest.param("dataset_info.json", "{}", id="no columns"),
        pytest.param("dataset_info.json", "{", id="no JSON"),
        pytest.param("dataset_info.json", "[3]", id="a list"),
        pytest.param("dataset_dict.json", "{}", id="no splits"),
        pytest.param("dataset_dict.json", '{"splits": ["."]}', id="itself"),
    ],
)
def test_a_folder_that_describes_no_columns_stays_missing(tmp_path, load, file, text):
    if file:
        (tmp_path / file).write_text(text)
    with pytest.raises(FileNotFoundError):
        load[0](tmp_path)
    assert not load[1]
