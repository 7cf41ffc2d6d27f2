"""Job files of RAD-RM and CARMA: what is read, and where exactly what is refused."""

from __future__ import annotations

import csv
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.core.errors import JobFileError
from cotenant.core.units import MiB
from cotenant.jobfiles.rad import parse_rad
from shared_data import SHARED_DATA

SAMPLES = SHARED_DATA / "carma" / "samples"
GOOD = [
    "# a comment",
    "conda activate tf",
    "python /w/vgg.py --batch_size 64",
    "vgg_64.model",
    "/raid/datasets/imagenet",
    "64",
    "exclusive",
    "2",
    "11760",
    "40000",
    "5379.029213",
    "16000",
]


def text_of(**changes):
    lines = list(GOOD)
    for number, line in changes.items():
        lines[int(number.removeprefix("line")) - 1] = line
    return "\n".join(lines)


def test_all_fields():
    rad = parse_rad(text_of(), "vgg2.rad")
    assert rad.command == ("python", "/w/vgg.py", "--batch_size", "64")
    assert (rad.activation, rad.model_file, rad.model_line) == ("conda activate tf", "vgg_64.model", 4)
    assert (rad.dataset, rad.batch_size, rad.policy, rad.gpus) == ("/raid/datasets/imagenet", 64, "exclusive", 2)
    assert rad.memory_bytes == {
        "measured": 11760 * MiB,
        "horus": None,  # 40000: cannot tell
        "faketensor": int(5379.029213 * MiB),
        "gpumemnet": 16000 * MiB,
    }


@pytest.mark.parametrize(
    ("activation", "start"),
    [
        pytest.param("conda activate tf", 'eval "$(conda shell.bash hook)" && conda activate tf && exec ', id="conda"),
        pytest.param("micromamba activate x", 'eval "$(micromamba shell hook --shell bash)" && micro', id="micromamba"),
        pytest.param("source /opt/env/bin/activate", "source /opt/env/bin/activate && exec ", id="source"),
        pytest.param(". env/bin/activate", ". env/bin/activate && exec ", id="dot"),
    ],
)
def test_environment_is_entered_in_a_login_shell(activation, start):
    bash, login, script = parse_rad(text_of(line2=activation), "x.rad").argv
    assert (bash, login) == ("bash", "-lc")
    assert script.startswith(start)
    assert script.endswith("exec python /w/vgg.py --batch_size 64")


def test_words_with_blanks_survive_the_shell():
    argv = parse_rad(text_of(line3="python 'my file.py' --name='a b; rm'"), "x.rad").argv
    assert argv[2].endswith("exec python 'my file.py' '--name=a b; rm'")


def test_without_environment_the_command_is_plain():
    lines = ["", "# one", "  # two", *GOOD[2:]]
    rad = parse_rad("\n".join(lines), "x.rad")
    assert rad.argv == rad.command == ("python", "/w/vgg.py", "--batch_size", "64")
    assert rad.model_line == 5


def test_line_ends_of_windows_and_trailing_comments():
    assert parse_rad("\r\n".join([*GOOD, "", "# the end", ""]), "x.rad").batch_size == 64


@pytest.mark.parametrize(
    ("change", "line", "reason"),
    [
        pytest.param({"line3": ""}, 3, "the line is empty, wanted the command", id="no command"),
        pytest.param({"line3": "python 'x.py"}, 3, "cannot be split into words: no closing quotation", id="quote"),
        pytest.param({"line2": "conda activate 'x"}, 2, "cannot be split into words", id="quote in environment"),
        pytest.param({"line4": " "}, 4, "the line is empty, wanted the model file", id="no model"),
        pytest.param({"line6": "many"}, 6, "the batch size is `many`, wanted a whole number", id="batch"),
        pytest.param({"line6": "0"}, 6, "the batch size is `0`", id="batch of none"),
        pytest.param({"line6": "1e3"}, 6, "the batch size is `1e3`", id="batch as a float"),
        pytest.param({"line6": "٣"}, 6, "the batch size is `٣`", id="digits of another script"),
        pytest.param({"line8": "0"}, 8, "the number of GPUs is `0`, wanted a whole number from 1 to 1024", id="GPUs"),
        pytest.param({"line8": "1025"}, 8, "the number of GPUs is `1025`", id="too many GPUs"),
        pytest.param({"line9": "lots"}, 9, "the measured memory is `lots`, wanted a number of MiB", id="memory"),
        pytest.param({"line9": "0"}, 9, "the measured memory is `0`", id="memory of none"),
        pytest.param({"line10": "nan"}, 10, "the estimate of Horus is `nan`", id="not a number"),
        pytest.param({"line11": "inf"}, 11, "the estimate of FakeTensor is `inf`", id="infinite"),
        pytest.param({"line12": "-5"}, 12, "the estimate of GPUMemNet is `-5`", id="negative"),
        pytest.param({"line12": "1_000"}, 12, "the estimate of GPUMemNet is `1_000`", id="underscore"),
        pytest.param({"line12": "5\nmore"}, 13, "`more` was not expected after the four memory lines", id="more"),
        pytest.param({"line5": "a\0b"}, 5, "holds a NUL byte", id="NUL"),
    ],
)
def test_refused_with_line_and_reason(change, line, reason):
    with pytest.raises(JobFileError) as caught:
        parse_rad(text_of(**change), "x.rad")
    assert caught.value.line == line
    assert str(caught.value).startswith(f"x.rad:{line}: ")
    assert reason in caught.value.reason


@pytest.mark.parametrize("count", [count for count in range(12) if count != 8])
def test_a_file_that_ends_early_is_refused_at_its_end(count):
    with pytest.raises(JobFileError) as caught:
        parse_rad("\n".join(GOOD[:count]), "x.rad")
    assert caught.value.line == max(count, 2 if count == 1 else 1) + (1 if count > 1 else 0)
    assert "the file ends here, wanted " in caught.value.reason


def test_forty_thousand_measured_is_a_measurement():
    assert parse_rad(text_of(line9="40000"), "x.rad").memory_bytes["measured"] == 40000 * MiB


LISTING = """\
# the summary is in the folder of this file
conda activate vision
python resnet.py --b 128

model: resnet.txt
batch_size: 128
policy: exclusive
"""


def test_the_listing_of_the_thesis():
    rad = parse_rad(LISTING, "resnet.rad")
    assert (rad.activation, rad.command) == ("conda activate vision", ("python", "resnet.py", "--b", "128"))
    assert (rad.model_file, rad.model_line, rad.batch_size) == ("resnet.txt", 5, 128)
    assert (rad.policy, rad.exclusive, rad.gpus, rad.memory_bytes) == ("exclusive", True, 1, {})


@pytest.mark.parametrize("order", list(itertools.permutations(LISTING.splitlines()[4:])))
def test_keys_in_any_order_and_comments_anywhere(order):
    lines = ["policy: collocation  # may share", *[key for key in order if not key.startswith("policy")]]
    text = "\n".join(
        [*lines[:2], "conda activate vision # mine", "# the job", 'python x.py --c="#f" a#b # c', *lines[2:]]
    )
    rad = parse_rad(text, "x.rad")
    assert rad.command == ("python", "x.py", "--c=#f", "a#b")
    assert (rad.activation, rad.model_file, rad.batch_size) == ("conda activate vision", "resnet.txt", 128)
    assert (rad.policy, rad.exclusive) == ("collocation", False)


def test_without_environment_the_keys_are_enough():
    assert parse_rad("python x.py\nmodel: m\nbatch_size: 1\npolicy: exclusive", "x.rad").argv == ("python", "x.py")


def test_comments_between_positions():
    rad = parse_rad("\n".join(line for good in GOOD for line in ("# next", good)) + "  # MiB", "x.rad")
    assert (rad.batch_size, rad.model_line, rad.memory_bytes["gpumemnet"]) == (64, 8, 16000 * MiB)


def keyed(**changes):
    lines = LISTING.splitlines()
    for number, line in changes.items():
        lines[int(number.removeprefix("line")) - 1] = line
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("change", "line", "reason"),
    [
        pytest.param({"line5": ""}, 7, "the file ends here, wanted `model:`", id="no model"),
        pytest.param({"line3": ""}, 7, "the file ends here, wanted the command", id="no command"),
        pytest.param({"line4": "python y.py"}, 4, "`python y.py` was not expected: line 3 is the command", id="two"),
        pytest.param({"line4": "conda activate y"}, 4, "`conda activate y` was not expected", id="late environment"),
        pytest.param({"line5": "model:"}, 5, "`model` has no value", id="empty"),
        pytest.param({"line5": "model: # m.txt"}, 5, "`model` has no value", id="commented out"),
        pytest.param({"line6": "batch_size: 1e3"}, 6, "the batch size is `1e3`, wanted a whole number", id="batch"),
        pytest.param({"line6": "batch: 3"}, 6, "unknown key `batch`, wanted model, batch_size, policy", id="key"),
        pytest.param({"line7": "policy: magm"}, 7, "`policy` is `magm`, wanted exclusive or collocation", id="policy"),
        pytest.param({"line7": "policy: exclusive\npolicy: exclusive"}, 8, "`policy` stands on line 7", id="twice"),
        pytest.param({"line3": "python 'x.py"}, 3, "cannot be split into words: no closing quotation", id="quote"),
    ],
)
def test_keys_refused_with_line_and_reason(change, line, reason):
    with pytest.raises(JobFileError) as caught:
        parse_rad(keyed(**change), "x.rad")
    assert str(caught.value).startswith(f"x.rad:{line}: ")
    assert reason in caught.value.reason


LINES = st.one_of(
    st.sampled_from([*GOOD, *LISTING.splitlines(), "policy:", "", "1", "-1", "#", "conda activate", "'", "1e400"]),
    st.text(max_size=12),
)


@given(st.lists(LINES, max_size=15).map("\n".join))
@settings(max_examples=400, deadline=None)
def test_any_text_is_a_job_or_a_job_file_error(text):
    try:
        rad = parse_rad(text, "fuzz.rad")
    except JobFileError as error:
        line = error.line
    else:
        line = 1
        assert rad.command
        assert rad.argv
        assert rad.gpus >= 1
        assert all(value is None or value > 0 for value in rad.memory_bytes.values())
    assert 1 <= line <= text.count("\n") + 2


@pytest.mark.skipif(not SAMPLES.exists(), reason="the published job files are not beside this checkout")
class TestPublishedFiles:
    def test_each_is_read_as_tabled_or_refused(self):
        with (SAMPLES.parent / "rad_specs.csv").open() as file:
            table = {row["rad"]: row for row in csv.DictReader(file)}
        files = sorted((SAMPLES / "rad").glob("*.rad"))
        assert len(files) == 52
        for file in files:
            row = table[file.stem]
            rad = parse_rad(file.read_text(), file.name)
            assert rad.activation == "conda activate tf"
            assert (rad.batch_size, rad.gpus) == (int(row["declared_batch"]), int(row["n_gpus"]))
            if file.stem == "gpt2_xl":  # it ends before its memory
                assert rad.memory_bytes == {}
                continue
            assert rad.memory_bytes["measured"] == int(row["measured_mem_mb"]) * MiB
            horus = float(row["horus_mb"])
            assert rad.memory_bytes["horus"] == (None if horus == 40000 else int(horus * MiB))

    def test_model_files_that_do_not_exist(self):
        models = {file.name for file in (SAMPLES / "model").iterdir()}
        named = {}
        for file in (SAMPLES / "rad").glob("*.rad"):
            rad = parse_rad(file.read_text(), file.name)
            named[file.stem] = (rad.model_file in models, rad.model_line)
        missing = {stem: line for stem, (exists, line) in named.items() if not exists}
        assert missing == {"efficientNet": 4, "efficientNet2": 4, "efficientNet3": 4}
