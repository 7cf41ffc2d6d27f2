"""Summaries that Keras prints."""

from __future__ import annotations

import pytest

from cotenant.core.errors import SummaryError
from cotenant.learn.model_summaries.summary import parse_summary

KERAS_2 = """\
Model: "sequential"
_________________________________________________________________
 Layer (type)                Output Shape              Param #
=================================================================
 conv2d (Conv2D)             (None, 26, 26, 32)        320

 max_pooling2d_with_a_long_  (None, 13, 13, 32)        0
 name (MaxPooling2D)
 flatten (Flatten)           (None, 5408)              0
 dense (Dense)               (None, 10)                54090
=================================================================
Total params: 54410 (212.54 KB)
"""
KERAS_3 = """\
Model: "functional"
┏━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━┓
┃ Layer (type)        ┃ Output Shape      ┃    Param # ┃ Connected to      ┃
┡━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━┩
│ image (InputLayer)  │ (None, 224, 224,  │          0 │ -                 │
│                     │ 3)                │            │                   │
├─────────────────────┼───────────────────┼────────────┼───────────────────┤
│ stem (Conv2D)       │ (None, 112, 112,  │      9,472 │ image[0][0]       │
│                     │ 64)               │            │                   │
├─────────────────────┼───────────────────┼────────────┼───────────────────┤
│ pool                │ (None, 64)        │          0 │ stem[0][0]        │
│ (GlobalAveragePool… │                   │            │                   │
├─────────────────────┼───────────────────┼────────────┼───────────────────┤
│ head (Dense)        │ (None, 1000)      │     65,000 │ pool[0][0]        │
└─────────────────────┴───────────────────┴────────────┴───────────────────┘
 Total params: 74,472 (290.91 KB)
"""


def test_keras_2_with_a_name_in_two_lines():
    found = parse_summary(KERAS_2)
    assert (found.format, found.batch, found.parameters) == ("keras", None, 54410)
    assert [(layer.kind, layer.output_shape) for layer in found.layers] == [
        ("conv", (32, 26, 26)),
        ("pool", (32, 13, 13)),
        ("reshape", (5408,)),
        ("linear", (10,)),
    ]


def test_keras_3_with_a_frame_and_connections():
    found = parse_summary(KERAS_3)
    assert [(layer.kind, layer.output_shape, layer.parameters) for layer in found.layers] == [
        ("conv", (64, 112, 112), 9472),
        ("pool", (64,), 0),
        ("linear", (1000,), 65000),
    ]


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        pytest.param("(None, 10)", "nothing", 10, "is no shape, wanted e.g. `(None, 26", id="shape"),
        pytest.param("54090", "many ", 10, "`many` is no count of parameters", id="count"),
        pytest.param("dense (Dense)", "dense        ", 10, "`dense` is no layer, wanted `NAME (TYPE)`", id="type"),
        pytest.param("Total params", "The end", 12, "", id="no end"),
        pytest.param("Output Shape", "Shape       ", 2, "wanted the titles Layer (type), Output Shape", id="titles"),
    ],
)
def test_refused_with_line_and_reason(old, new, line, reason):
    with pytest.raises(SummaryError) as caught:
        parse_summary(KERAS_2.replace(old, new), "m.txt")
    assert str(caught.value).startswith(f"m.txt:{line}: ")
    assert reason in str(caught.value)
