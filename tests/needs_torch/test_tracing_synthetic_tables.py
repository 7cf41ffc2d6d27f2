"""Synthetic tables of the Hugging Face hub: rows and columns that scripts read and that the table lacks."""

from __future__ import annotations

import io
import json

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.data.data_options import parse_sample
from cotenant.tracing.data.tables import synthetic_columns, synthetic_hf_datasets, synthetic_tables
from cotenant.tracing.data.tables.column_values import ColumnMaker
from traced_scripts import traced

LIBRARY = """
class ClassLabel:
    def __init__(self, names):
        self.names = names

from datasets.dataset_dict import DatasetDict

def load_dataset(path, name=None, **kwargs):
    raise FileNotFoundError(path)

from datasets.arrow_dataset import Dataset
"""
SPLITS = """
class DatasetDict(dict):
    def __getitem__(self, name):
        return super().__getitem__(name)
"""
TABLE = """
class Dataset:
    @classmethod
    def from_dict(cls, columns):
        made = cls()
        made.columns, made.column_names, made.features = columns, list(columns), dict.fromkeys(columns)
        return made

    def cast_column(self, name, kind):
        self.features[name] = kind
        return self

    def __len__(self):
        return len(self.columns["text"])

    def __getitem__(self, key):
        return {name: values[key] for name, values in self.columns.items()}

    def __getitems__(self, keys):
        return [{name: values[key] for name, values in self.columns.items()} for key in keys]

    def select(self, indices):
        picked = {name: [values[index] for index in indices] for name, values in self.columns.items()}
        return Dataset.from_dict(picked)

    def train_test_split(self, test_size=None, train_size=None):
        assert test_size < len(self)
        test_size = int(test_size * len(self)) if isinstance(test_size, float) else test_size
        return {"train": self.select(range(test_size, len(self))), "test": self.select(range(test_size))}
"""
SCRIPT = """
import torch
from torch.utils.data import DataLoader
from datasets import load_dataset
lengths = set()
def collate(rows):
    assert "prompt" not in rows[0] and rows[0].get("prompt") is None
    assert type(rows[0])({"text": "a"}) == {"text": "a"}
    lengths.update(len(row["prompt"].split()) for row in rows)
    return torch.zeros(len(rows), 8)
model = torch.nn.Linear(8, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
table = load_dataset("nothing", split="train")
assert len(table) == 1000 and len(table.select([5])) == 1
{more}
for batch in DataLoader(table, batch_size=4, collate_fn=collate):
    assert lengths == {64}
    model(batch.cuda()).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "more",
    [
        pytest.param("", id="columns"),
        pytest.param("assert len(table.select(range(10_000))) == 10_000", id="more rows than there are"),
        pytest.param(
            "parts = table.train_test_split(test_size=2_000)\n"
            "assert (len(parts['train']), len(parts['test'])) == (1_000, 2_000)",
            id="a part of more rows than there are",
        ),
        pytest.param(
            "splits = load_dataset('nothing')\n"
            "assert 'dev' not in splits and len(splits['dev']) == len(splits['train'])",
            id="a split of another name",
        ),
        pytest.param(
            "parts = table.train_test_split(test_size=0.0005)\n"
            "assert (len(parts['train']), len(parts['test'])) == (900, 100)\n"
            "parts = table.train_test_split(test_size=len(table) / len(table))\n"
            "assert (len(parts['train']), len(parts['test'])) == (100, 900)",
            id="a tiny part of a large table, and the ratio of two alike splits",
        ),
    ],
)
def test_tables_make_the_columns_and_rows_that_are_read(tmp_path, more):
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "arrow_dataset.py").write_text(TABLE)
    (tmp_path / "datasets" / "__init__.py").write_text(LIBRARY)
    (tmp_path / "datasets" / "dataset_dict.py").write_text(SPLITS)
    assert not traced(tmp_path, SCRIPT.replace("{more}", more), synthetic_data=["64:int64:30000"]).partial


HUB = """
def snapshot_download(repo_id, **kwargs):
    raise FileNotFoundError(repo_id)
"""
ASKING = """
import os
def saved(*args, **kwargs):
    table.save_to_disk(*args, **kwargs)
    return table.saved
from huggingface_hub import snapshot_download
assert os.listdir(snapshot_download(repo_id="a/b", repo_type="dataset", ignore_patterns=["*"])) == []
for others in ({"repo_type": "dataset"}, {"repo_type": "dataset", "ignore_patterns": "*.md"}, {"ignore_patterns": "*"}):
    try:
        snapshot_download("a/b", **others)
    except FileNotFoundError:
        continue
    raise SystemExit(str(others))
assert saved("saved", num_proc=3) == ("saved", {"num_proc": None, "num_shards": 3})
assert saved("saved", num_shards=2) == ("saved", {"num_proc": None, "num_shards": 2})
assert saved("saved") == ("saved", {"num_proc": None})
"""
MAPPING = """
assert table.map(len, num_proc=3) == {"num_proc": None} and table.map(len) == {}
assert table.map(len, remove_columns=["text"]) == {"remove_columns": ["text"]}
assert table.map(len, remove_columns=["text", "meta"]) == {"remove_columns": table.column_names}
from datasets.arrow_dataset import fingerprint_of
assert len({fingerprint_of("of a table", len, {"function": model}) for _ in range(3)}) == 3
"""
MAP = """
    def map(self, function, **kwargs):
        return kwargs

from datasets.fingerprint import update_fingerprint

def fingerprint_of(*args):
    return update_fingerprint(*args)
"""
FINGERPRINT = """
def update_fingerprint(fingerprint, transform, transform_args):
    raise SystemExit("pickles the model")
"""


def test_rows_are_mapped_in_this_process_without_pickling_what_the_function_refers_to(tmp_path):
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "arrow_dataset.py").write_text(TABLE + MAP)
    (tmp_path / "datasets" / "fingerprint.py").write_text(FINGERPRINT)
    (tmp_path / "datasets" / "__init__.py").write_text(LIBRARY)
    (tmp_path / "datasets" / "dataset_dict.py").write_text(SPLITS)
    traced(tmp_path, SCRIPT.replace("{more}", MAPPING), synthetic_data=["64:int64:30000"])


SAVE = """
    def save_to_disk(self, path, **kwargs):
        Dataset.saved = (path, kwargs)
"""


def test_a_data_set_exists_at_the_hub_and_is_saved_by_this_process(tmp_path):
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "arrow_dataset.py").write_text(TABLE + SAVE)
    (tmp_path / "datasets" / "__init__.py").write_text(LIBRARY)
    (tmp_path / "datasets" / "dataset_dict.py").write_text(SPLITS)
    (tmp_path / "huggingface_hub.py").write_text(HUB)
    traced(tmp_path, SCRIPT.replace("{more}", ASKING), synthetic_data=["64:int64:30000"])


def test_prompts_are_messages_where_reward_functions_read_messages():
    columns, _ = synthetic_hf_datasets.synthetic_columns([parse_sample("8:int64")], "DeepMath-103K", "")
    assert columns["prompt"][0] == [{"role": "user", "content": " ".join(["word"] * 8)}]
    assert columns["solution"][0] == " ".join(["word"] * 8)


def test_a_prompt_and_its_answers_share_the_words_of_a_sample():
    columns, _ = synthetic_hf_datasets.synthetic_columns([parse_sample("8:int64")], "ultrafeedback_binarized", "")
    assert [len(columns[name][0].split()) for name in ("prompt", "chosen", "rejected")] == [4, 4, 4]


@pytest.mark.parametrize(
    ("arguments", "name", "columns"),
    [
        pytest.param(["kto.py"], "mine", ("prompt", "completion"), id="script"),
        pytest.param(["bin/trl", "dpo"], "mine", ("prompt", "chosen", "rejected"), id="subcommand"),
        pytest.param(["train.py"], "kto-mix-14k", ("prompt", "completion"), id="data set"),
    ],
)
def test_trainers_of_preferences_have_prompts_that_leave_room_for_answers(monkeypatch, arguments, name, columns):
    monkeypatch.setattr("sys.argv", arguments)
    made, _ = synthetic_hf_datasets.synthetic_columns([parse_sample("8:int64")], name, "")
    assert [len(made[column][0].split()) for column in columns] == [4] * len(columns)


@pytest.mark.parametrize(
    ("program", "name", "column"),
    [
        pytest.param("train.py", "scene_parse_150", "annotation", id="data set"),
        pytest.param("run_semantic_segmentation.py", "mine", "label", id="script"),
    ],
)
def test_a_class_for_each_pixel_is_an_image_without_colors(monkeypatch, program, name, column):
    monkeypatch.setattr("sys.argv", [program])
    made, classes = synthetic_hf_datasets.synthetic_columns([parse_sample("3x8x16:uint8:5")], name, "")
    assert (made[column][0].mode, made[column][0].size, classes) == ("L", (16, 8), 0)
    assert made["image"][0].mode == "RGB"


def test_an_image_of_all_rows_is_encoded_once(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["train.py"])
    made, _ = synthetic_hf_datasets.synthetic_columns([parse_sample("3x8x16:uint8:5")], "scene_parse_150", "")
    for image in (made["image"][0], made["annotation"][0]):
        expected = io.BytesIO()
        image.copy().save(expected, format="PNG")
        files = [io.BytesIO() for _ in range(3)]
        image.save(files[0], format="PNG")
        image.putpixel((0, 0), 255)  # what is encoded later shows that nothing is
        image.save(files[1], format="PNG")
        assert files[0].getvalue() == files[1].getvalue() == expected.getvalue()
        image.save(files[2], format="PNG", compress_level=0)
        assert files[2].getvalue() != expected.getvalue()
        image.save(tmp_path / "image.png", format="PNG")
        assert (tmp_path / "image.png").read_bytes() != expected.getvalue()
        image.save(bitmap := io.BytesIO(), format="BMP")
        assert bitmap.getvalue()[:2] == b"BM"


def test_labels_of_answers_are_good_or_bad_and_tables_of_instructions_have_none(monkeypatch):
    """TRL compares them by `is True`; a collator of transformers takes a column `label` for lists of tokens."""
    monkeypatch.setattr("sys.argv", ["train.py"])
    of_answers, classes = synthetic_hf_datasets.synthetic_columns([parse_sample("8:int64")], "kto-mix-14k", "")
    assert of_answers["label"][:3] == [True, False, True]
    assert not classes
    of_steps, _ = synthetic_hf_datasets.synthetic_columns([parse_sample("8:int64")], "prm800k", "")
    assert len(of_steps["completions"][0]) == len(of_steps["labels"][0]) == 2
    assert of_steps["labels"][1] == [False, False]
    made, _ = synthetic_hf_datasets.synthetic_columns([parse_sample("8:int64")], "alpaca-cleaned", "")
    assert {"instruction", "output"} < set(made)
    assert "label" not in made


def test_chats_with_images_are_lists_of_messages_and_lists_of_images(monkeypatch):
    samples = [parse_sample("3x8x8:uint8"), parse_sample("8:int64")]
    made, _ = synthetic_hf_datasets.synthetic_columns(samples, "llava-instruct-mix-vsft", "")
    assert sorted(made) == ["images", "messages"]
    assert made["images"][0][0].size == (8, 8)
    assert [message["role"] for message in made["messages"][0]] == ["user", "assistant"]
    monkeypatch.setattr("sys.argv", ["dpo_vlm.py"])
    made, _ = synthetic_hf_datasets.synthetic_columns(samples, "mine", "")
    assert made["chosen"][0] == [{"role": "assistant", "content": "word word word word"}]


def test_columns_that_a_scripts_parsed_options_name_by_default_are_there(tmp_path):
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "arrow_dataset.py").write_text(TABLE)
    (tmp_path / "datasets" / "__init__.py").write_text(LIBRARY)
    (tmp_path / "datasets" / "dataset_dict.py").write_text(SPLITS)
    before = """
import argparse, dataclasses
parser = argparse.ArgumentParser()
parser.add_argument("--hint_column", default="hint_image")
parser.add_argument("--other_field")
args = parser.parse_args()
@dataclasses.dataclass
class Own:
    caption_column: str = "said"
own = Own()
"""
    script = before + SCRIPT.replace(
        "{more}", "assert {'hint_image', 'said'} <= set(table.column_names)\nlengths.add(64)"
    )
    assert not traced(tmp_path, script, synthetic_data=["64:int64:30000"]).partial


def test_the_label_that_an_option_names_has_classes(tmp_path):
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "arrow_dataset.py").write_text(TABLE)
    (tmp_path / "datasets" / "__init__.py").write_text(LIBRARY)
    (tmp_path / "datasets" / "dataset_dict.py").write_text(SPLITS)
    more = "assert table.features['labels'].names[:2] == ['0', '1']\nlengths.add(64)"
    script = SCRIPT.replace("{more}", more)
    assert not traced(tmp_path, script, "--label_column_name", "labels", synthetic_data=["64:int64:30000"]).partial


def test_columns_that_an_option_calls_text_are_text(monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py", "--text_column_names=title,category", "--label_column_name", "target"])
    made, _ = synthetic_hf_datasets.synthetic_columns([parse_sample("8:int64")], "mine", "")
    assert len(made["category"][0].split()) == len(made["title"][0].split()) == 8
    assert made["target"][:2] == [0, 1]


def test_an_answer_of_gsm8k_ends_as_scripts_split_it():
    columns, _ = synthetic_hf_datasets.synthetic_columns([parse_sample("8:int64")], "gsm8k", "main")
    assert columns["answer"][0] == f"{' '.join(['word'] * 8)} #### 1"
    assert columns["question"][0] == " ".join(["word"] * 8)


@pytest.mark.parametrize(
    ("samples", "name", "value"),
    [
        (["8:int64"], "num_terms", 1),
        (["8:int64"], "similarity_score", 1.0),
        (["8:int64"], "similarityScore", 1.0),
        (["4096:float32"], "movieId", "0"),
        (["4:int64", "3x8x8:uint8"], "texts", [{"user": "word word", "assistant": "word word"}]),
        (["4:int64"], "texts", "word word word word"),
    ],
)
def test_a_column_has_a_value_that_suits_its_name(samples, name, value):
    assert ColumnMaker.of([parse_sample(text) for text in samples]).value(name) == value


def test_real_tables_are_divided_and_looked_up_as_the_script_says():
    class Splits(dict):
        pass

    look_up = synthetic_columns._split_by_any_name(lambda: False, dict.__getitem__)
    with pytest.raises(KeyError):
        look_up(Splits(train=[1]), "dev")
    divide = synthetic_columns._splitting(lambda: False, lambda table, *sizes: sizes)
    assert divide([0] * 9, test_size=0.0005) == (0.0005, None)


def test_texts_of_rows_differ():
    """Samplers of batches without duplicates would give batches of one row."""
    made = ColumnMaker.of([parse_sample("8:int64")])
    for column in (made.column("text", 1000), [json.dumps(chat) for chat in made.column("messages", 1000)]):
        assert len(set(column)) == 1000
    assert {len(text.split()) for text in made.column("text", 1000)} == {8}
    columns, _ = synthetic_hf_datasets.synthetic_columns([parse_sample("8:int64")], "all-nli", "triplet")
    assert list(columns) == ["anchor", "positive", "negative"]
    assert all(len(set(texts)) == 1000 for texts in columns.values())


STREAM = """
class IterableDataset:
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        for row in self.rows:
            yield dict(row)

    def map(self, function=None, batched=False, input_columns=None):
        rows = list(self.rows)
        if batched:
            found = function({name: [row[name] for row in rows] for name in rows[0]})
            names = list(found)
            return IterableDataset([dict(zip(names, values)) for values in zip(*(found[name] for name in names))])
        return IterableDataset([function(dict(row)) for row in rows])

    def filter(self, function=None):
        return IterableDataset([row for row in self.rows if function(dict(row))])

    def skip(self, n):
        return IterableDataset(self.rows[n:])
"""
STREAMED = """
from datasets.iterable_dataset import IterableDataset

def to_stream(table):
    return IterableDataset([{"text": value} for value in table.columns["text"]])

Dataset.to_iterable_dataset = to_stream
"""
STREAMING = """
stream = load_dataset("nothing", split="train", streaming=True)
assert len(next(iter(stream))["prompt"].split()) == 64
assert next(iter(stream)).get("prompt") is None
assert next(iter(stream.map(lambda row: {"n": len(row["prompt"].split())})))["n"] == 64
counted = stream.map(lambda rows: {"n": [len(text.split()) for text in rows["prompt"]]}, batched=True)
assert [row["n"] for row in counted] == [64] * 1000
assert sum(1 for _ in stream.filter(lambda row: row["num_turns"] < 3)) == 1000
assert sum(1 for _ in stream.skip(50_000)) == 1000
"""


def test_streams_make_the_columns_and_rows_that_are_read(tmp_path):
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "arrow_dataset.py").write_text(TABLE)
    (tmp_path / "datasets" / "iterable_dataset.py").write_text(STREAM)
    (tmp_path / "datasets" / "__init__.py").write_text(LIBRARY + STREAMED)
    (tmp_path / "datasets" / "dataset_dict.py").write_text(SPLITS)
    traced(tmp_path, SCRIPT.replace("{more}", STREAMING), synthetic_data=["64:int64:30000"])


EMPTY_STREAM = """
class Empty(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(())

assert list(DataLoader(Empty(), batch_size=2)) == []
"""


@pytest.mark.parametrize("options", [{}, {"sequence_lengths": "longest"}])
def test_a_stream_without_samples_has_no_batches(tmp_path, options):
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "arrow_dataset.py").write_text(TABLE)
    (tmp_path / "datasets" / "__init__.py").write_text(LIBRARY)
    (tmp_path / "datasets" / "dataset_dict.py").write_text(SPLITS)
    script = (
        SCRIPT.replace("{more}", EMPTY_STREAM)
        .replace('"prompt" not in rows[0]', "True")
        .replace("assert lengths", "assert True or lengths")
    )
    traced(tmp_path, script, synthetic_data=["64:int64:30000"], **options)


def test_a_text_is_a_question_and_its_answer_for_a_chat_template():
    tables = synthetic_hf_datasets.LoadedTables()

    def template(self, conversation):
        return conversation

    apply = synthetic_hf_datasets.templating_texts(tables, template)
    assert apply(None, "one two three") == "one two three"  # of the script's own data
    tables.synthetic = 1
    said = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two three"}]
    assert apply(None, "one two three") == said
    assert apply(None, ["one two three"]) == [said]
    assert apply(None, said) == said


@pytest.mark.parametrize(
    ("source", "mentions"),
    [
        pytest.param('"""Time series\nof stocks."""\nx = read_csv("a.csv")\n', False, id="docstring"),
        pytest.param('def f():\n    """By date."""\n    return table["date"]\n', True, id="code"),
        pytest.param("x = 1  # the first column is a date\n", True, id="comment"),
    ],
)
def test_a_docstring_says_nothing_of_dates(tmp_path, source, mentions):
    script = tmp_path / "read.py"
    script.write_text(source)
    assert synthetic_tables._mentions_dates(str(script)) is mentions


class _Rows(list):
    """As `datasets.Dataset`, for what iterates over it."""


@pytest.mark.parametrize("is_synthetic", [True, False])
def test_rows_of_a_table_grow_while_a_script_iterates_over_it(is_synthetic):
    maker = ColumnMaker.of([parse_sample("8:int64")])
    rows = list(synthetic_columns._iterating(maker, lambda: is_synthetic, _Rows.__iter__)(_Rows([{}, {}])))
    if not is_synthetic:
        assert all(type(row) is dict for row in rows)
        return
    assert [row["sentence1"] for row in rows] == [maker.words(row=number) for number in range(2)]
