"""Word vectors that a script reads itself are made, of as many words as the synthetic texts have."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.data.data_options import SyntheticSample
from cotenant.tracing.data.text.word_vectors import WordVectors
from cotenant.tracing.sandbox.overlay import Overlay

TEXT = SyntheticSample(shape=(8,), dtype="int64", classes=60)


@pytest.fixture
def made(tmp_path, monkeypatch):
    """The lines of a file that is made; empty if none is. `warned`: what was said of them."""
    monkeypatch.chdir(tmp_path)
    overlay = Overlay(str(tmp_path / "scratch"))
    warned = []

    def lines(path, *samples):
        if not WordVectors(samples or (TEXT,), overlay, warned.append).make(path):
            return []
        return [line.split(" ") for line in Path(overlay.above(overlay.path_of(path))).read_text().splitlines()]

    lines.warned = warned
    return lines


@pytest.mark.parametrize(
    ("path", "numbers", "header"),
    [
        pytest.param("data/glove.6B.50d.txt", 50, [], id="GloVe"),
        pytest.param(".vector_cache/glove.840B.300d.txt", 300, [], id="large GloVe"),
        pytest.param("data/sgns.wiki.char.100dim.txt", 100, [["60", "100"]], id="word2vec with a header"),
        pytest.param("sgns.wiki.word", 300, [["60", "300"]], id="word2vec without a suffix"),
        pytest.param("wiki.en.vec", 300, [["60", "300"]], id="fastText"),
    ],
)
def test_word_vectors_have_the_numbers_that_their_name_says(made, path, numbers, header):
    found = made(path)
    vectors = found[len(header) :]
    assert found[: len(header)] == header
    assert len({word for word, *_ in vectors}) == len(vectors) == 60
    assert all([float(number) for number in rest] == [0.1] * numbers for _, *rest in vectors)
    assert made.warned == [f"`{path}`, vectors of {numbers} numbers for 60 words,"]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("data/train.txt", id="a text"),
        pytest.param("wiki.en.txt", id="a corpus"),
        pytest.param("sgns.wiki.word.bz2", id="packed"),
    ],
)
def test_other_texts_are_no_word_vectors(made, path):
    assert not made(path)


def test_without_texts_no_word_vectors_are_made(made):
    assert not made("glove.6B.50d.txt", SyntheticSample(shape=(3, 8, 8), dtype="uint8", classes=2))
    assert not made.warned
