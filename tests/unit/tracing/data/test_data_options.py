"""`--synthetic-data` and `--sequence-lengths` are parsed, and a wrong value is refused with the name of its option."""

from __future__ import annotations

import pytest

from cotenant.core.errors import UsageError
from cotenant.tracing.data import data_options


@pytest.mark.parametrize(
    ("text", "shape", "dtype", "classes"),
    [
        pytest.param("3x224x224", (3, 224, 224), "float32", 10, id="shape"),
        pytest.param("512:int64", (512,), "int64", 10, id="type"),
        pytest.param("3x32x32:uint8:100", (3, 32, 32), "uint8", 100, id="classes"),
        pytest.param(" 7:bfloat16", (7,), "bfloat16", 10, id="with a blank"),
    ],
)
def test_a_synthetic_data_option_sets_shape_dtype_and_classes(text, shape, dtype, classes):
    found = data_options.parse_sample(text)
    assert (found.shape, found.dtype, found.classes) == (shape, dtype, classes)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        pytest.param("3x8x16", ["is_image"], id="an image"),
        pytest.param("3x8", [], id="of two dimensions"),
        pytest.param("8:int64", ["is_text"], id="tokens"),
        pytest.param("8:uint8", ["is_text"], id="tokens in bytes"),
        pytest.param("8:float16", ["is_recording_or_row"], id="a row"),
        pytest.param("8:bfloat16", ["is_recording_or_row"], id="a row in half precision"),
    ],
)
def test_a_sample_is_of_one_kind(text, kinds):
    sample = data_options.parse_sample(text)
    assert [kind for kind in ("is_image", "is_text", "is_recording_or_row") if getattr(sample, kind)] == kinds


def test_the_first_sample_of_a_kind_is_taken():
    samples = [data_options.parse_sample(text) for text in ("8", "4:int64", "3x8x16", "5:int64", "1x8x16")]
    assert (data_options.first_image(samples), data_options.first_text(samples)) == (samples[2], samples[1])
    assert data_options.first_image(samples[:2]) is data_options.first_text(samples[:1]) is None


@pytest.mark.parametrize(
    "text", ["", "3x", "-3", "0", "3x0x2", "3x4:what8", "3x4:float32:many", "3x4:int64:0", "3x4:load"]
)
def test_an_invalid_synthetic_data_option_is_refused(text):
    with pytest.raises(UsageError) as caught:
        data_options.validate_options(["3x4", text], "")
    assert caught.value.message == f"`--synthetic-data`: `{text}` describes no sample"
    assert "SHAPE[:DTYPE[:CLASSES]]" in caught.value.hint


@pytest.mark.parametrize(
    ("which", "shares"),
    [
        ("", ()),
        ("longest", (1.0,)),
        ("p95", (0.95,)),
        ("p99.5", (0.995,)),
        ("p100", (1.0,)),
        ("growing", (0.8, 0.9, 1)),
    ],
)
def test_a_sequence_length_option_sets_shares_of_lengths(which, shares):
    data_options.validate_options([], which)
    assert data_options.length_quantiles(which) == shares


@pytest.mark.parametrize("which", ["short", "p", "p101", "p-1", "p95%", "95"])
def test_an_invalid_sequence_length_option_is_refused(which):
    with pytest.raises(UsageError) as caught:
        data_options.validate_options([], which)
    assert caught.value.message == f"`--sequence-lengths`: `{which}` is no length"
    assert "p95" in caught.value.hint


def test_an_inlined_histogram_is_a_valid_length_option():
    data_options.validate_options([], "histogram:20x6,40x3")
