"""Job files of CARMA: what is read, and where exactly what is refused."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.core.errors import JobFileError
from cotenant.core.units import MiB
from cotenant.jobfiles.carma import parse

SAMPLES = Path(__file__).parents[4] / "shared" / "data" / "carma" / "samples"
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
    rad = parse(text_of(), "vgg2.rad")
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
    bash, login, script = parse(text_of(line2=activation), "x.rad").argv
    assert (bash, login) == ("bash", "-lc")
    assert script.startswith(start)
    assert script.endswith("exec python /w/vgg.py --batch_size 64")


def test_words_with_blanks_survive_the_shell():
    argv = parse(text_of(line3="python 'my file.py' --name='a b; rm'"), "x.rad").argv
    assert argv[2].endswith("exec python 'my file.py' '--name=a b; rm'")


def test_without_environment_the_command_is_plain():
    lines = ["", "# one", "  # two", *GOOD[2:]]
    rad = parse("\n".join(lines), "x.rad")
    assert rad.argv == rad.command == ("python", "/w/vgg.py", "--batch_size", "64")
    assert rad.model_line == 5


def test_line_ends_of_windows_and_trailing_comments():
    assert parse("\r\n".join([*GOOD, "", "# the end", ""]), "x.rad").batch_size == 64


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
        parse(text_of(**change), "x.rad")
    assert caught.value.line == line
    assert str(caught.value).startswith(f"x.rad:{line}: ")
    assert reason in caught.value.reason


@pytest.mark.parametrize("count", range(12))
def test_a_file_that_ends_early_is_refused_at_its_end(count):
    with pytest.raises(JobFileError) as caught:
        parse("\n".join(GOOD[:count]), "x.rad")
    assert caught.value.line == max(count, 2 if count == 1 else 1) + (1 if count > 1 else 0)
    assert "the file ends here, wanted " in caught.value.reason


def test_forty_thousand_measured_is_a_measurement():
    assert parse(text_of(line9="40000"), "x.rad").memory_bytes["measured"] == 40000 * MiB


LINES = st.one_of(st.sampled_from([*GOOD, "", "1", "-1", "#", "conda activate", "'", "1e400"]), st.text(max_size=12))


@given(st.lists(LINES, max_size=15).map("\n".join))
@settings(max_examples=400, deadline=None)
def test_any_text_is_a_job_or_a_job_file_error(text):
    try:
        rad = parse(text, "fuzz.rad")
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
        refused = {}
        for file in files:
            row = table[file.stem]
            try:
                rad = parse(file.read_text(), file.name)
            except JobFileError as error:
                refused[file.stem] = (error.line, error.reason)
                continue
            assert rad.activation == "conda activate tf"
            assert (rad.batch_size, rad.gpus) == (int(row["declared_batch"]), int(row["n_gpus"]))
            assert rad.memory_bytes["measured"] == int(row["measured_mem_mb"]) * MiB
            horus = float(row["horus_mb"])
            assert rad.memory_bytes["horus"] == (None if horus == 40000 else int(horus * MiB))
        assert refused == {"gpt2_xl": (9, "the file ends here, wanted the measured memory, in MiB")}

    def test_model_files_that_do_not_exist(self):
        models = {file.name for file in (SAMPLES / "model").iterdir()}
        named = {}
        for file in (SAMPLES / "rad").glob("*.rad"):
            if file.stem != "gpt2_xl":
                rad = parse(file.read_text(), file.name)
                named[file.stem] = (rad.model_file in models, rad.model_line)
        missing = {stem: line for stem, (exists, line) in named.items() if not exists}
        assert missing == {"efficientNet": 4, "efficientNet2": 4, "efficientNet3": 4}
