"""What scripts look up of a data set of the Hugging Face hub beside its rows: types of columns, names of classes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.data.data_options import SyntheticSample
from cotenant.tracing.data.files import missing_downloads
from cotenant.tracing.data.tables import synthetic_hf_datasets
from cotenant.tracing.data.tables.column_options import columns_of_options
from cotenant.tracing.data.tables.column_values import ColumnMaker, kind_of
from cotenant.tracing.data.tables.synthetic_columns import _decoded
from traced_scripts import traced

IMAGES = SyntheticSample(shape=(3, 8, 16), classes=7)


def test_a_made_up_column_of_recordings_has_their_sampling_rate(tmp_path):
    pytest.importorskip("datasets")
    source = """
import torch
from datasets import load_dataset
rows = load_dataset("someone/gone", split="train").select(range(4))
assert rows.features["audio"].sampling_rate == rows[0]["audio"]["sampling_rate"] == 16000
assert [*rows.map(lambda row: {"n": 1}).features]
assert rows.map(lambda row: {"n": len(row["audio"]["array"].squeeze())})[0]["n"] == 4000
assert {type(row["audio"]["array"]).__name__ for row in [rows[0], next(iter(rows))]} == {"ndarray"}
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.zeros(2, 8).cuda()).sum().backward()
    optimizer.step()
"""
    traced(tmp_path, source, synthetic_data=["4000:float32"])


def test_options_name_columns_but_for_one_that_scripts_write():
    options = ["--audio_column_name", "speech", "--text_column_name=sentence", "--length_column_name=input_length"]
    assert columns_of_options(options) == {"speech": "speech", "sentence": "text"}


def test_recordings_of_a_plain_table_are_decoded():
    read = [{"array": [0.0, 0.5], "sampling_rate": 16000}]
    (recording,) = _decoded("audio", read)
    assert recording["array"].dtype == "float32"
    assert recording["array"].tolist() == [0.0, 0.5]
    assert _decoded("text", read) is read


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("image_id", "count"),
        ("image", "image"),
        ("image_width", "count"),
        ("semantic_class_to_id", "class numbers"),
        ("conversations", "chat"),
        ("conversation_id", "row"),
        ("label_id", "label"),
    ],
)
def test_a_column_that_describes_something_does_not_hold_it(name, kind):
    assert kind_of(name) == kind


def test_the_target_beside_an_input_that_is_read_is_a_text():
    maker = ColumnMaker.of([SyntheticSample(shape=(4,), dtype="int64")])

    def pair(maker):
        return maker.column("input", 2), maker.column("target", 2), maker.value("target"), maker.value("label")

    def labeled():
        return maker.column("text", 2), maker.column("target", 2)

    inputs, targets, target, label = pair(maker)
    assert (targets, target, label) == (inputs, inputs[0], 0)
    assert labeled() == (inputs, [0, 1])
    assert pair(ColumnMaker.of([IMAGES]))[1:] == ([0, 1], 0, 0)


def test_objects_of_an_image_have_a_box_inside_it():
    value = ColumnMaker.of([IMAGES]).value("objects")
    assert (value["bbox"], value["area"], value["category"]) == ([[0.0, 0.0, 8.0, 4.0]], [32.0], [0])


@pytest.fixture
def download():
    """(`hf_hub_download` without a network, its warnings)."""

    def absent(*args, **kwargs):
        raise FileNotFoundError

    warned = []
    patches = missing_downloads.patches([IMAGES], warned.append)
    (patch,) = (patch for patch in patches if patch.target.endswith("hf_hub_download"))
    return patch.replacement(absent), warned


def test_a_list_of_classes_that_is_not_here_has_those_of_the_sample(download):
    fetch, warned = download
    path = fetch("huggingface/label-files", filename="ade20k-id2label.json", repo_type="dataset")
    assert json.loads(Path(path).read_text()) == {str(number): str(number) for number in range(7)}
    assert warned == ["`huggingface/label-files/ade20k-id2label.json`"]


@pytest.mark.parametrize(("name", "kind"), [("README.md", "dataset"), ("id2label.json", "model")])
def test_another_file_of_the_hub_stays_missing(download, name, kind):
    with pytest.raises(FileNotFoundError):
        download[0]("someone/gone", name, repo_type=kind)
    assert not download[1]


@pytest.mark.parametrize(
    ("args", "named", "fetched"),
    [
        pytest.param(("https://a.org/b.zip", "b.zip"), {}, "`https://a.org/b.zip`", id="by position"),
        pytest.param((), {"id": "1a2b", "output": "b.zip"}, "`1a2b`", id="an identity"),
        pytest.param(("https://a.org/b.zip",), {"output": "b.zip"}, "`https://a.org/b.zip`", id="to a name"),
    ],
)
def test_a_download_gives_the_file_that_it_was_to_write(monkeypatch, args, named, fetched):
    def absent(*args, **kwargs):
        raise OSError

    warned = []
    (patch,) = (found for found in missing_downloads.patches([], warned.append) if found.target == "gdown:download")
    fetch = patch.replacement(absent)
    assert fetch(*args, **named) == "b.zip"
    assert warned == [fetched]
    monkeypatch.setattr(missing_downloads.script_location, "is_called_by_user", lambda: False)
    with pytest.raises(OSError):
        fetch(*args, **named)


@pytest.mark.parametrize(
    ("part", "columns"),
    [("corpus", ["_id", "text"]), ("queries", ["_id", "text"]), ("qrels", ["query-id", "corpus-id"])],
)
def test_parts_of_a_retrieval_benchmark_have_the_columns_that_evaluators_check(part, columns):
    texts = [SyntheticSample(shape=(8,), dtype="int64", classes=30000)]
    found, classes = synthetic_hf_datasets.synthetic_columns(texts, "NanoBEIR-en", part)
    assert (list(found), classes) == (columns, 0)
