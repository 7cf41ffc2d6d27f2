"""`cotenant measure` and `cotenant calibrate` where nothing can be measured: why, what is wanted, what to do."""

from __future__ import annotations

import sys

import pytest

from cotenant.cli.main import main
from cotenant.core.errors import BackendError, UsageError
from cotenant.measurement.campaign import CampaignSetup
from cotenant.measurement.preflight import check_gpu

JOBS = '[[job]]\nname = "a"\nscript = "train.py"\n'


@pytest.fixture
def a_python(tmp_path):
    """An interpreter that does as it is told, whatever it is asked."""

    def make(lines):
        path = tmp_path / "python"
        path.write_text(f"#!{sys.executable}\nimport sys\n{lines}\n")
        path.chmod(0o755)
        return str(path)

    return make


def check(python, tmp_path, reason="NVML does not start"):
    check_gpu(CampaignSetup(out=tmp_path, python=python, watch=None, no_watch=reason))


@pytest.mark.parametrize(
    ("lines", "message", "hint"),
    [
        pytest.param(
            "sys.exit(\"ModuleNotFoundError: No module named 'torch'\")",
            "cannot import torch: ModuleNotFoundError: No module named 'torch'",
            "--python",
            id="no torch",
        ),
        pytest.param("", "cannot import torch: no output", "--python", id="no answer"),
        pytest.param(
            """print('["2.13.0+cpu", null, false]')""",
            "was built without CUDA",
            "--python",
            id="a CPU build",
        ),
        pytest.param(
            """print('hello'); print('["2.13.0", "13.0", false]')""",
            "torch 2.13.0 finds no GPU: NVML does not start",
            "cotenant doctor",
            id="no GPU",
        ),
    ],
)
def test_errors_name_what_is_missing(a_python, tmp_path, lines, message, hint):
    with pytest.raises(BackendError) as caught:
        check(a_python(lines), tmp_path)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_gpu_passes(a_python, tmp_path):
    check(a_python("""print('["2.13.0", "13.0", true]')"""), tmp_path)


def test_a_missing_interpreter_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="`--python`: cannot start `nope`: no such file"):
        check("nope", tmp_path)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        pytest.param("calibrate", 1, id="calibrate"),
        pytest.param("measure jobs.toml --out out", 1, id="measure"),
        pytest.param("measure --pairs jobs.toml --out out", 1, id="pairs"),
        pytest.param("measure --convs --out out", 1, id="convolutions"),
        pytest.param("calibrate --out nope/gpu.toml", 2, id="a file that could not be written, first"),
    ],
)
def test_wrong_requests_are_refused_before_any_run(a_python, tmp_path, monkeypatch, capsys, words, code):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.toml").write_text(JOBS)
    (tmp_path / "train.py").touch()
    python = a_python("""print('["2.13.0+cpu", null, false]')""")
    assert main([*words.split(), "--python", python]) == code
    assert capsys.readouterr().err.startswith("error: torch 2.13.0+cpu of" if code == 1 else "error: cannot write")
    assert not (tmp_path / "out").exists()
