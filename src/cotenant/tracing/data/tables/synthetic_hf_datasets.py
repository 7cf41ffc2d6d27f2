"""Synthetic data sets of the Hugging Face hub, with the columns that training scripts for them use.

Well-known ones have the columns and classes of their cards on the hub; any other has the usual names, and those that
the script's options name. `synthetic_columns` makes others when they are read. A text has as many words as the
synthetic sample has numbers; a pair of sentences shares them. Where the only sample of one dimension is of
floating-point numbers, and too short for audio, the table is a time series.
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cotenant.tracing.data.data_options import MIN_AUDIO_SAMPLES, SyntheticSample, first_image, first_text
from cotenant.tracing.data.images.synthetic_torchvision import SYNTHETIC_SAMPLES, blank_image, encoded_once
from cotenant.tracing.data.tables.column_options import columns_of_options, columns_of_parsed_options
from cotenant.tracing.data.tables.column_values import ColumnMaker, kind_of, number_columns, words_of_row
from cotenant.tracing.data.tables.synthetic_records import made_up

ROWS = 1000
_MIN_RECORDINGS, _RECORDED_NUMBERS, _WORDS = 128, 2**24, 2**20
"""Rows, and numbers, of a table of recordings, of which scripts compute spectra before they train; words of one of
texts, which they divide into tokens."""
_SENTENCE_PAIR = ("sentence1", "sentence2")
_CLASSIFICATION: Mapping[str, tuple[tuple[str, ...], int]] = {
    "cola": (("sentence",), 2),
    "sst2": (("sentence",), 2),
    "mrpc": (_SENTENCE_PAIR, 2),
    "stsb": (_SENTENCE_PAIR, 0),
    "rte": (_SENTENCE_PAIR, 2),
    "wnli": (_SENTENCE_PAIR, 2),
    "qqp": (("question1", "question2"), 2),
    "qnli": (("question", "sentence"), 2),
    "mnli": (("premise", "hypothesis"), 3),
    "snli": (("premise", "hypothesis"), 3),
    "xnli": (("premise", "hypothesis"), 3),
    "imdb": (("text",), 2),
    "rotten_tomatoes": (("text",), 2),
    "ag_news": (("text",), 4),
    "yelp_review_full": (("text",), 5),
    "emotion": (("text",), 6),
    "dbpedia_14": (("title", "content"), 14),
}
"""Columns of text and classes, 0 for a number; by the name of the data set or, of a collection, that of its part."""
_CHOICES, _ENDINGS_OF_CHOICES = "swag", tuple(f"ending{number}" for number in range(4))
"""A sentence, the begin of another, and four endings of which one follows: a sequence has three of these texts."""
_SUMMARIES = {
    "cnn_dailymail": ("article", "highlights"),
    "xsum": ("document", "summary"),
    "samsum": ("dialogue", "summary"),
    "billsum": ("text", "summary"),
    "multi_news": ("document", "summary"),
    "gsm8k": ("question", "answer"),
}
_ENDINGS = {("gsm8k", "answer"): "#### 1"}
"""What a text ends with that scripts split there. Source: openai/grade-school-math, README."""
_TAGS: Mapping[str, Mapping[str, int]] = {
    "conll2003": {"pos_tags": 47, "chunk_tags": 23, "ner_tags": 9},
    "conllpp": {"pos_tags": 47, "chunk_tags": 23, "ner_tags": 9},
    "wnut_17": {"ner_tags": 13},
    "ncbi_disease": {"ner_tags": 3},
    "wikiann": {"ner_tags": 7},
    "few-nerd": {"ner_tags": 9, "fine_ner_tags": 67},
}
"""Columns of tags, of which each word of the column `tokens` has one, and how many tags differ."""
_TRANSLATIONS = ("wmt14", "wmt16", "wmt17", "wmt19", "opus_books", "opus100", "kde4", "iwslt2017")
_CORPORA = ("wikitext", "bookcorpus", "openwebtext", "tinystories", "fineweb", "fineweb-edu", "lambada")
"""Texts that have no labels: scripts join all columns that they do not remove."""
_LEAST_WORDS = 4
"""Of a text whose second word is like its first."""
_QUESTIONS = ("squad", "squad_v2", "adversarial_qa")
_RETRIEVAL = {"corpus": ("_id", "text"), "queries": ("_id", "text"), "qrels": ("query-id", "corpus-id")}
"""Columns of the parts of BEIR's data sets, which evaluators of sentence-transformers check."""
_PLAIN_OWNER = "SetFit/"
"""Its copies of well-known sets have the columns `text` and `label`."""
_SPLITS = ("train", "validation", "test")
_EMBEDDED = {"pair": ("anchor", "positive"), "triplet": ("anchor", "positive", "negative")}
"""Texts to embed: by the part of a data set of sentence-transformers, whose trainers take each column for an input."""
_BY_PURPOSE = (
    (("vsft", "llava", "vlm"), ("messages", "images")),
    (("rlaif-v",), ("prompt", "chosen", "rejected", "images")),
    (("alpaca", "dolly", "instruct"), ("instruction", "input", "output")),
    (("kto",), ("prompt", "completion", "label")),
    (("dpo", "feedback", "preference", "rlhf", "reward"), ("prompt", "chosen", "rejected")),
    (("tldr",), ("prompt", "completion")),
    (("prm", "math_shepherd"), ("prompt", "completions", "labels")),
    (("deepmath",), ("prompt", "solution")),
    (("chat", "capybara", "sharegpt", "oasst", "assistant"), ("messages",)),
)
"""Words of a data set's name, and the columns that libraries look for in data sets of that purpose."""
_ANSWERS = {"chosen", "completion", "completions"}
_TRAINERS = {"dpo", "kto", "orpo", "cpo", "simpo", "reward", "vlm"}
"""Words of the names of scripts and subcommands whose data sets have a prompt and answers, whatever their names."""

_MASKS = (("scene_parse", "annotation"), ("semantic", "label"))
"""Words of the names of data sets and scripts, and their column of images of classes.
Source: zhoubolei/scene_parse_150, segments/sidewalk-semantic."""
_CHAT_PROMPTS = ("deepmath", "ultrafeedback-prompt")
"""Words of the names of data sets whose prompts are messages, for which reward functions get messages, too."""


class LoadedTables:
    """Which tables a script has loaded so far."""

    def __init__(self) -> None:
        self.synthetic = 0
        self.real = 0

    def only_synthetic(self) -> bool:
        """Whether there are tables, and all are synthetic."""
        return self.synthetic > 0 and not self.real


def number_of_batches(tables: LoadedTables, original: Any) -> Any:
    """The length of a loader; one of a table that was made up has as many batches as 50 such tables."""

    @functools.wraps(original)
    def length(self: Any) -> int:
        count = original(self)
        kind = type(self.dataset)
        is_table = any(base.__module__ == "datasets.arrow_dataset" for base in kind.__mro__)
        return count * (SYNTHETIC_SAMPLES // ROWS) if is_table and tables.only_synthetic() else count

    return length


def image_sample(known: Sequence[SyntheticSample]) -> SyntheticSample:
    """The sample for images."""
    return first_image(known) or known[0]


def synthesizing_load(
    original: Any, known: Sequence[SyntheticSample], warn: Callable[[str], None], tables: LoadedTables
) -> Any:
    """`load_dataset` of `datasets`, which returns synthetic data where it raises."""

    def load(*args: Any, **kwargs: Any) -> Any:
        try:
            found = original(*args, **kwargs)
            tables.real += 1
            return found
        except Exception as error:  # every version of the library has errors of its own for missing data
            if type(error) in (TypeError, AttributeError):
                raise
            name, part = [*(str(arg) for arg in args[:2]), "", ""][:2]
            name, part = name or str(kwargs.get("path", "")), part or str(kwargs.get("name", ""))
            name = name.replace(_PLAIN_OWNER, "setfit-")
            warn(f"the data set `{name}`")
            made_up.append(name)
            tables.synthetic += 1
            module = sys.modules["datasets"]
            return _splits(module, _dataset(module, known, name, part), part, kwargs)

    return load


def existing_at_hub(original: Any) -> Any:
    """`snapshot_download` of `huggingface_hub`; an empty folder for a data set of which no file is wanted.

    By such a call scripts find out whether the hub has a data set, before they load it.
    """

    @functools.wraps(original)
    def snapshot_download(repo_id: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(repo_id, *args, **kwargs)
        except (OSError, ValueError):  # `LocalEntryNotFoundError` is both
            ignored = kwargs.get("ignore_patterns") or ()
            if kwargs.get("repo_type") != "dataset" or "*" not in ([ignored] if isinstance(ignored, str) else ignored):
                raise
            return tempfile.mkdtemp()

    return snapshot_download


def mapping_in_this_process(tables: LoadedTables, original: Any) -> Any:
    """`Dataset.map` or `filter`, which starts no other processes for synthetic rows, and removes columns they have."""

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if tables.only_synthetic() and kwargs.get("num_proc"):
            kwargs["num_proc"] = None
        removed = kwargs.get("remove_columns")
        if tables.only_synthetic() and isinstance(removed, (str, list)):
            wanted = [removed] if isinstance(removed, str) else removed
            # Where the real table has other columns, the script names all of them: rows may become more or fewer.
            has_all = all(name in self.column_names for name in wanted)
            kwargs["remove_columns"] = wanted if has_all else self.column_names
        return original(self, *args, **kwargs)

    return call


def templating_texts(tables: LoadedTables, original: Any) -> Any:
    """`apply_chat_template`, for which a synthetic text is a question and its answer."""

    @functools.wraps(original)
    def apply_chat_template(self: Any, conversation: Any, *args: Any, **kwargs: Any) -> Any:
        if tables.only_synthetic():
            if isinstance(conversation, str):
                conversation = _messages_of(conversation)
            elif isinstance(conversation, list) and conversation and isinstance(conversation[0], str):
                conversation = [_messages_of(text) for text in conversation]
        return original(self, conversation, *args, **kwargs)

    return apply_chat_template


def _messages_of(text: str) -> list[dict[str, str]]:
    words = text.split()
    half = len(words) // 2
    parts = (("user", words[:half]), ("assistant", words[half:]))
    return [{"role": role, "content": " ".join(part)} for role, part in parts]


def without_hashing(tables: LoadedTables, original: Any) -> Any:
    """`update_fingerprint`, which gives a table that is made of synthetic ones a number: no run has made it before."""
    numbers = itertools.count()

    @functools.wraps(original)
    def update_fingerprint(fingerprint: Any, transform: Any, transform_args: Any) -> Any:
        if not tables.only_synthetic():
            return original(fingerprint, transform, transform_args)
        return f"synthetic{next(numbers):07x}"

    return update_fingerprint


def _splits(module: Any, table: Any, part: str, kwargs: Mapping[str, Any]) -> Any:
    dataset = table.to_iterable_dataset() if kwargs.get("streaming") else table
    split = kwargs.get("split")
    if isinstance(split, (list, tuple)):
        return [dataset] * len(split)
    if split is not None:
        return dataset
    more = [f"{name}_{kind}" for name in _SPLITS[1:] for kind in ("matched", "mismatched")] if part == "mnli" else []
    kind = module.IterableDatasetDict if kwargs.get("streaming") else module.DatasetDict
    return kind(dict.fromkeys((*_SPLITS, *more), dataset))


def _dataset(module: Any, known: Sequence[SyntheticSample], name: str, part: str) -> Any:
    columns, classes = synthetic_columns(known, name.rpartition("/")[2], part)
    table = module.Dataset.from_dict(columns)
    if classes:
        for column, values in columns.items():
            if kind_of(column) == "label" and isinstance(values[0], int):
                names = [str(label) for label in range(max(classes if column == "label" else 0, max(values) + 1))]
                table = table.cast_column(column, module.ClassLabel(names=names))
    for column, count in _TAGS.get(name.rpartition("/")[2], {}).items():
        names = [str(tag) for tag in range(count)]
        table = table.cast_column(column, module.Sequence(module.ClassLabel(names=names)))
    return table


def synthetic_columns(known: Sequence[SyntheticSample], name: str, part: str) -> tuple[dict[str, list[Any]], int]:
    """(columns, number of classes) of the data set `name`, or of its part `part` where that has its own columns."""
    columns, classes = _usual_columns(known, name, part)
    maker = ColumnMaker.of(known)
    lowered = name.lower()
    purpose = _purpose_columns(lowered) or _purpose_columns(_trainer_name(sys.argv))
    if "images" in purpose and maker.image is not None:
        return _image_chats(maker, purpose), 0
    named = columns_of_options(sys.argv), columns_of_parsed_options(sys._getframe())
    rows = len(next(iter(columns.values())))
    if purpose:  # such tables have no classes
        columns, classes = {column: values for column, values in columns.items() if column != "label"}, 0
    for column in (*itertools.chain(*named), *purpose):
        if column not in columns:
            # A prompt and its answer share the sample's words: trainers drop prompts that fill the longest sequence.
            shares = column in purpose and _ANSWERS & set(purpose)
            made_as = named[0].get(column, column)
            made = [maker.of_answer(column, row) for row in range(rows)] if shares else maker.column(made_as, rows)
            columns[column] = made
    if any(word in lowered for word in _CHAT_PROMPTS):
        columns["prompt"] = [[{"role": "user", "content": maker.words(row=row)}] for row in range(rows)]
    if maker.text is not None and maker.image is None:
        columns = {column: values[: text_rows(maker)] for column, values in columns.items()}
    return columns, classes


def text_rows(maker: ColumnMaker) -> int:
    """Rows of a table of texts: fewer where they are long."""
    return ROWS if maker.text is None else max(_MIN_RECORDINGS, min(ROWS, _WORDS // maker.text.shape[0]))


def _image_chats(maker: ColumnMaker, columns: Sequence[str]) -> dict[str, list[Any]]:
    """Chats with one image each, as trainers of vision-language models read them."""
    images = [encoded_once(blank_image(maker.image))] if maker.image is not None else []

    def value(column: str, row: int) -> Any:
        words = maker.words(2, row)
        question, answer = {"role": "user", "content": words}, {"role": "assistant", "content": words}
        known = {"messages": [question, answer], "prompt": [question], "images": images}
        return known.get(column, [answer])

    return {column: [value(column, row) for row in range(ROWS)] for column in columns}


def _purpose_columns(name: str) -> tuple[str, ...]:
    return next((columns for words, columns in _BY_PURPOSE if any(word in name for word in words)), ())


def _trainer_name(arguments: Sequence[str]) -> str:
    """The kind of trainer that a script (`dpo.py`) or a subcommand (`trl kto`) is named after; empty if none.

    Trainers of pairs (`orpo.py`) have the columns of DPO's.
    """
    words = {word for argument in arguments[:2] for word in re.split(r"[^a-z]+", Path(argument).name.lower())}
    found = words & _TRAINERS
    if "vlm" in found:
        return "vlm" if found == {"vlm"} else "rlaif-v"
    return "" if not found else "kto" if "kto" in found else "dpo"


def _usual_columns(known: Sequence[SyntheticSample], name: str, part: str) -> tuple[dict[str, list[Any]], int]:
    maker = ColumnMaker.of(known)
    if image_sample(known).is_image:
        return _image_columns(maker, image_sample(known), name)
    if first_text(known) is None and maker.audio is not None and maker.audio.shape[0] >= MIN_AUDIO_SAMPLES:
        rows = max(_MIN_RECORDINGS, min(ROWS, _RECORDED_NUMBERS // maker.audio.shape[0]))
        audio = {column: maker.column(column, rows) for column in ("audio", "text", "sentence")}
        return {**audio, "label": _label_column(maker.audio.classes)[:rows]}, maker.audio.classes
    tokens = first_text(known)
    if tokens is None and maker.audio is not None:
        return number_columns(maker.audio.shape[0]), 0
    length = (tokens or known[0]).shape[0]
    known_name = next((candidate for candidate in (part, name) if candidate in _CLASSIFICATION), None)
    if known_name is not None:
        texts, classes = _CLASSIFICATION[known_name]
        words = {column: _text_column(length // len(texts)) for column in texts}
        return {**words, "label": _label_column(classes), "idx": list(range(ROWS))}, classes
    if name in _TAGS:
        tags = {column: [[index % count for index in range(length)]] * ROWS for column, count in _TAGS[name].items()}
        return {"id": _id_column(), "tokens": [["word"] * length] * ROWS, **tags}, 0
    if name == _CHOICES:
        words = {column: _text_column(max(1, length // 3)) for column in ("sent1", "sent2", *_ENDINGS_OF_CHOICES)}
        return {**words, "label": _label_column(len(_ENDINGS_OF_CHOICES))}, len(_ENDINGS_OF_CHOICES)
    if name in _SUMMARIES:
        pair = {column: _text_column(length, _ENDINGS.get((name, column), "")) for column in _SUMMARIES[name]}
        return {**pair, "id": _id_column()}, 0
    if name in _TRANSLATIONS:
        languages = part.split("-") if "-" in part else ("en", "de")
        translations = [dict.fromkeys(languages, text) for text in _text_column(length)]
        return {"id": _id_column(), "translation": translations}, 0
    if name in _QUESTIONS:
        # Not the first word, before which scripts look for the answer's start where no special token is.
        answers = [{"text": ["word"], "answer_start": [len("word ") if length > _LEAST_WORDS else 0]}] * ROWS
        question: dict[str, list[Any]] = {"question": _text_column(max(1, length // 16)), "answers": answers}
        return {"id": _id_column(), "title": _text_column(1), "context": _text_column(length), **question}, 0
    if name.lower() in _CORPORA:
        return {"text": _text_column(length)}, 0
    if "beir" in name.lower() and part in _RETRIEVAL:
        return {name: _text_column(length) if name == "text" else _id_column() for name in _RETRIEVAL[part]}, 0
    if part in _EMBEDDED or part.startswith("triplet-"):
        return {column: _text_column(length) for column in _EMBEDDED[part.partition("-")[0]]}, 0
    return {"text": _text_column(length), "sentence": _text_column(length), "label": _label_column(2)}, 2


def _image_columns(maker: ColumnMaker, sample: SyntheticSample, name: str) -> tuple[dict[str, list[Any]], int]:
    """As of `_usual_columns`; of a data set or for a script named after masks, a class for each pixel, and no label."""
    image, names = encoded_once(blank_image(sample)), f"{name} {Path(sys.argv[0]).name}".lower()
    if mask := next((column for word, column in _MASKS if word in names), ""):
        return {"image": [image] * ROWS, mask: [encoded_once(image.convert("L"))] * ROWS}, 0
    captions = dict.fromkeys(("text", "caption"), maker.column("text", ROWS))
    labels = _label_column(sample.classes)
    return {"image": [image] * ROWS, **captions, "img": [image] * ROWS, "label": labels}, sample.classes


def _text_column(count: int, ending: str = "") -> list[str]:
    return [" ".join([words_of_row(count, row), *ending.split()]) for row in range(ROWS)]


def _label_column(classes: int) -> list[Any]:
    return [index % classes for index in range(ROWS)] if classes else [1.0] * ROWS


def _id_column() -> list[str]:
    return [str(row) for row in range(ROWS)]
