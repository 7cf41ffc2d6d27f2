"""Hints about missing data: an example of the kind of data, which works when it is pasted."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("torch", reason="the module imports torch")

from cotenant.core.errors import TraceError
from cotenant.tracing.data.data_options import parse_sample
from cotenant.tracing.data.missing_data_hints import example, missing_data_hint
from traced_scripts import traced


@pytest.mark.parametrize(
    ("words", "loaded", "shape"),
    [
        pytest.param("no such file: '/data/a/1.wav'", (), (160000,), id="a recording"),
        pytest.param("no such file: '/data/train.tsv'", ("torchvision",), (1024,), id="a text, by its suffix"),
        pytest.param("no such file: '/data/shape.h5'", (), (1024, 3), id="a point cloud"),
        pytest.param("no such file: '/data/train'", ("transformers",), (1024,), id="texts, by a library"),
        pytest.param("no such file: '/data/train.csv'", ("pandas",), (7,), id="a table"),
        pytest.param("no such file: '/data/train.csv'", ("pandas", "PIL"), (3, 224, 224), id="a table of images"),
        pytest.param("no such file: '/data/train'", (), (3, 224, 224), id="nothing says"),
    ],
)
def test_example_is_of_the_kind_of_data(words, loaded, shape):
    sample, what = example(words, loaded)
    assert parse_sample(sample).shape == shape
    assert what


def test_the_hint_says_what_synthetic_data_cannot_make():
    error = FileNotFoundError("no such file: data/train.pkl")
    assert "`--synthetic-data " in missing_data_hint(error, [])
    assert "its writer alone knows its content" in missing_data_hint(error, ["3x8x8"])
    assert "a small one of the same form" in missing_data_hint(FileNotFoundError("data/x.abc"), ["3x8x8"])
    assert missing_data_hint(ValueError("shapes differ"), []) is None


@pytest.mark.parametrize(
    ("path", "what"),
    [
        pytest.param("fonts/Arial.TTF", "a font", id="a font"),
        pytest.param("default_font.bin", "a font", id="a font by its name"),
        pytest.param("data/fontaine/7.bin", None, id="a name that begins like a font"),
        pytest.param("libs/libgomp.so.1", "a library", id="a library"),
        pytest.param("data/train.source", None, id="a suffix that begins like a library's"),
        pytest.param("merges.txt", "a part of the model", id="a part of a tokenizer"),
        pytest.param("configs/train.yaml", "a configuration", id="a configuration"),
        pytest.param("data/train.tomls", None, id="a suffix that begins like a configuration's"),
    ],
)
def test_what_is_missing_may_be_no_data(path, what):
    hint = missing_data_hint(FileNotFoundError(2, "No such file or directory", path), ())
    if what is None:
        assert "are data missing" in hint
    else:
        assert hint == f"{what} is not on this machine: install it, or fetch it as for the job"


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="needs torchvision")
def test_the_hint_has_the_size_of_a_known_data_set(tmp_path):
    with pytest.raises(TraceError) as caught:
        traced(tmp_path, "from torchvision import datasets\ndatasets.FashionMNIST('gone', download=True)\n")
    assert "`--synthetic-data 1x28x28:uint8:10` (images of FashionMNIST)" in caught.value.hint


@pytest.mark.parametrize(
    "message",
    [
        pytest.param("no vectors found at ../word2vec/vectors.txt", id="vectors of words"),
        pytest.param("Unable to locate credentials", id="a bucket of a cloud"),
        pytest.param("Dataset 'coco8.yaml' error: environment may be offline", id="a data set with a configuration"),
    ],
)
def test_messages_of_missing_data_are_known(message):
    assert "are data missing" in missing_data_hint(RuntimeError(message), [])


def test_the_hint_for_an_array_of_the_wrong_shape_asks_for_its_shape(tmp_path):
    source = "import numpy, torch\nnumpy.load('data/12.mel.npy')[:, 0, 0]\n"
    with pytest.raises(TraceError) as caught:
        traced(tmp_path, source, synthetic_data=["16000:float32"])
    assert "give its shape with `--synthetic-data .mel.npy=SHAPE:DTYPE`" in caught.value.hint


def test_the_hint_for_an_array_that_opencv_rejects_asks_for_its_shape(tmp_path):
    message = "OpenCV(4.11.0) resize.cpp:3845: error: (-215:Assertion failed) !dsize.empty() in function 'resize'"
    source = f"import numpy\nnumpy.load('maps/IMG_1.map.npy')\nraise Exception({message!r})\n"
    with pytest.raises(TraceError) as caught:
        traced(tmp_path, source, synthetic_data=["3x768x1024:uint8"])
    assert "give its shape with `--synthetic-data .map.npy=SHAPE:DTYPE`" in caught.value.hint


def test_the_hint_for_lengths_that_differ_names_the_file_that_was_made_up(tmp_path):
    source = """
import torch
from reader import rows
words = list(rows("data/train.json")[0]["text"])
torch.zeros(len(words)) + torch.zeros(len(words) + 1)
"""
    (tmp_path / "reader.py").write_text(
        "import json\ndef rows(path):\n    with open(path) as file:\n        return json.load(file)\n"
    )
    with pytest.raises(TraceError) as caught:
        traced(tmp_path, source, synthetic_data=["16:int64:100"])
    assert "`data/train.json` had to be made up" in caught.value.hint


def test_the_hint_names_the_folders_of_arrays_that_differ_in_shape(tmp_path):
    source = "import numpy\nmel, pitch = (numpy.load(f'data/{kind}/1-{kind}.npy') for kind in ('mel', 'pitch'))\n"
    with pytest.raises(TraceError) as caught:
        traced(tmp_path, f"{source}print(mel.shape[1])\n", synthetic_data=["80:float32"])
    assert "`mel`, `pitch` had to be made up, all of one shape" in caught.value.hint


@pytest.mark.parametrize(
    ("source", "shape"),
    [
        pytest.param("import torchaudio", "160000:float32", id="named"),
        pytest.param("from torchaudio import load", "160000:float32", id="a function of it"),
        pytest.param("__import__('torchaudio')", "3x224x224:uint8:1000` (for images;", id="loaded by others"),
    ],
)
def test_libraries_count_that_the_script_itself_names(tmp_path, source, shape):
    (tmp_path / "torchaudio.py").write_text("def load(path):\n    pass\n")
    with pytest.raises(TraceError) as caught:
        traced(tmp_path, f"{source}\nopen('corpus/index')\n")
    assert f"--synthetic-data {shape}" in caught.value.hint


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        pytest.param("No teachers at out/CIFAR100/net", "`out/CIFAR100/net` is not on this", id="absent"),
        pytest.param("No trajectories and/or labels", "--show-output", id="no path"),
        pytest.param("no kernel for size 3 of layer", "--show-output", id="no slash"),
    ],
)  # fmt: skip
def test_a_path_that_the_script_misses_is_named(tmp_path, message, hint):
    source = f"""
import torch
if torch.randn(2, device='cuda').sum().item() == 0:
    pass
raise AssertionError({message!r})
"""
    with pytest.raises(TraceError) as caught:
        traced(tmp_path, source)
    assert hint in caught.value.hint
    assert ("maybe because of values" in str(caught.value)) == (hint == "--show-output")


@pytest.mark.parametrize(
    ("listing", "named"),
    [
        pytest.param("names = [path for part in os.walk('./brains_3m') for path in part[2]]", "./brains_3m", id="walk"),
        pytest.param("names = glob.glob('brains/Train/*.vol')", "brains/Train/*.vol", id="glob"),
        pytest.param("names = list(Path('brains').rglob('*.vol'))", "brains/*.vol", id="rglob"),
    ],
)  # fmt: skip
def test_where_files_were_looked_for_and_not_found_is_named(tmp_path, listing, named):
    last = "def last():\n    for at, _ in enumerate(names):\n        pass\n    return at\nlast()"
    for use in ("random.sample(names, 10)", "torch.utils.data.DataLoader(names, shuffle=True)", last):
        with pytest.raises(TraceError) as caught:
            traced(
                tmp_path, f"import glob, os, random, torch\nfrom pathlib import Path\n{listing}\n{use}\n",
                synthetic_data=["3x8x8:uint8"],
            )  # fmt: skip
        assert f"no files of the kind that it wants in `{named}`" in caught.value.hint


@pytest.mark.parametrize(
    ("source", "named"),
    [
        pytest.param("names = glob.glob('names/*.txt')\nnames[0]", "names/*.txt", id="raised"),
        pytest.param("for path in Path('names').rglob('*.wav'):\n    train(path)", "names/*.wav", id="ended"),
        pytest.param(
            "x = torch.zeros(2).cuda()\nfor *_, files in os.walk('names'):\n    train(files)", "names", id="no step"
        ),
        pytest.param("names = glob.glob('checkpoints/*.pt')\nnames[0]", "", id="of an earlier run"),
    ],
)
def test_where_no_files_are_found_is_named_without_synthetic_data(tmp_path, source, named):
    with pytest.raises(TraceError) as caught:
        traced(tmp_path, f"import glob, os, torch\nfrom pathlib import Path\n{source}\n")
    hint = caught.value.hint
    assert ("no files of the kind that it wants" in hint) == bool(named)
    assert not named or f"in `{named}`: are data missing on this machine? add `--synthetic-data " in hint
