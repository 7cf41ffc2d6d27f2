"""Data sets of Keras that are not on this machine."""

import sys
import types

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

import numpy as np

from cotenant.tracing.data import synthetic_keras
from cotenant.tracing.patches.registry import PatchTable


def out_of_reach(*args, **kwargs):
    raise Exception("URL fetch failure on https://storage.googleapis.com/mnist.npz")  # noqa: TRY002 - as Keras does


@pytest.fixture
def load(monkeypatch):
    """Loads a data set of a Keras whose `load_data` is the given function; `warnings`: what was said."""
    warnings = []

    def run(name, original=out_of_reach, **options):
        module = types.ModuleType(f"keras.src.datasets.{name}")
        module.load_data = original
        for package in ("keras", "keras.src", "keras.src.datasets"):
            monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        table = PatchTable(synthetic_keras.patches(lambda *words: warnings.append(words)))
        table.apply()
        try:
            return module.load_data(**options)
        finally:
            table.undo()

    run.warnings = warnings
    return run


@pytest.mark.parametrize(
    ("name", "rows", "shape", "classes", "label_shape"),
    [
        ("mnist", (60_000, 10_000), (28, 28), 10, ()),
        ("cifar10", (50_000, 10_000), (32, 32, 3), 10, (1,)),
        ("cifar100", (50_000, 10_000), (32, 32, 3), 100, (1,)),
    ],
)
def test_images_have_the_documented_shapes_and_all_classes(load, name, rows, shape, classes, label_shape):
    for (images, labels), count in zip(load(name), rows, strict=True):
        assert images.shape == (count, *shape)
        assert images.dtype == np.uint8
        assert labels.shape == (count, *label_shape)
        assert set(labels.ravel().tolist()) == set(range(classes))
    assert load.warnings == [("a data set of Keras", "zeros in the shapes that it documents")]


def test_texts_are_lists_of_words_and_their_classes_are_known(load):
    (texts, labels), _ = load("reuters", num_words=1000)
    assert len(texts) == 8_982
    assert {len(text) for text in texts} == {146}
    assert labels.max() == 45


def test_numbers_to_predict_are_no_classes(load):
    (inputs, prices), (_, others) = load("california_housing", version="large")
    assert inputs.shape == (16_512, 8)
    assert prices.dtype == np.float32
    assert others.shape == (4_128,)


def test_data_that_are_here_are_read(load):
    assert load("mnist", lambda: "data") == "data"
    assert not load.warnings


def test_an_error_of_the_script_stays_one(load):
    def refuse(label_mode):
        raise ValueError(f"`label_mode` must be 'fine' or 'coarse', not {label_mode}")

    with pytest.raises(ValueError, match="not x"):
        load("cifar100", refuse, label_mode="x")
