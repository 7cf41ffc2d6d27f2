"""Data sets of `keras.datasets` that are not on this machine: zeros in the shapes that Keras documents.

Their shapes are known, so a synthetic sample does not decide them. Labels go through all classes: scripts count the
classes by the largest label. A text has as many words as the set has in the mean.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from cotenant.tracing.patches.registry import Patch, Phase


class _Set(NamedTuple):
    """A data set: its rows for training and for tests, and what a row is.

    Source: keras/src/datasets, the text of each `load_data`.

    Attributes:
        rows: for training and for tests.
        shape: of a row's inputs; for a text one number, its words.
        classes: of the labels; 0: a number to predict.
        label_shape: of a row's label.
        has_texts: whether a row is a list of words.
    """

    rows: tuple[int, int]
    shape: tuple[int, ...]
    classes: int = 0
    label_shape: tuple[int, ...] = ()
    has_texts: bool = False


_DIGITS, _COLORS = (60_000, 10_000), (50_000, 10_000)
_SETS = {
    "mnist": _Set(_DIGITS, (28, 28), 10),
    "fashion_mnist": _Set(_DIGITS, (28, 28), 10),
    "cifar10": _Set(_COLORS, (32, 32, 3), 10, (1,)),
    "cifar100": _Set(_COLORS, (32, 32, 3), 100, (1,)),
    "imdb": _Set((25_000, 25_000), (239,), 2, has_texts=True),
    "reuters": _Set((8_982, 2_246), (146,), 46, has_texts=True),
    "boston_housing": _Set((404, 102), (13,)),
    "california_housing": _Set((16_512, 4_128), (8,)),
}


def patches(warn: Callable[[str, str], None]) -> list[Patch]:
    """`load_data` of each set."""
    return [
        Patch(
            target=f"keras.src.datasets.{name}:load_data", phase=Phase.DATA, wraps=True, also_in="keras",
            replacement=functools.partial(_loading, data_set, warn), reason="It downloads them.",
            source=f"keras/src/datasets/{name}.py, `load_data`",
        )
        for name, data_set in _SETS.items()
    ]  # fmt: skip


def _loading(data_set: _Set, warn: Callable[[str, str], None], original: Any) -> Any:
    @functools.wraps(original)
    def load(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except Exception as error:
            if type(error) is not Exception:  # that of `keras.utils.get_file`
                raise
        warn("a data set of Keras", "zeros in the shapes that it documents")
        return tuple(_part(data_set, rows) for rows in data_set.rows)

    return load


def _part(data_set: _Set, rows: int) -> tuple[Any, Any]:
    """Inputs and labels of so many rows, as NumPy arrays."""
    numpy = importlib.import_module("numpy")
    if not data_set.classes:
        return numpy.zeros((rows, *data_set.shape), "float32"), numpy.zeros(rows, "float32")
    labels = (numpy.arange(rows) % data_set.classes).reshape(rows, *data_set.label_shape)
    if not data_set.has_texts:
        return numpy.zeros((rows, *data_set.shape), "uint8"), labels.astype("uint8")
    texts = numpy.empty(rows, object)
    texts[:] = [[1] * data_set.shape[0] for _ in range(rows)]
    return texts, labels
