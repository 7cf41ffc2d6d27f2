"""Options in the script: found at its top, overruled by the command line, left out with a warning where foreign."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest

from cotenant.cli import directives, job_builder
from cotenant.cli.job_builder import with_directives
from cotenant.core.errors import JobFileError

PARAMETERS = {
    name: each.annotation for name, each in inspect.signature(job_builder.build_job, eval_str=True).parameters.items()
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    return tmp_path


def read(text):
    Path("job.sh").write_text(text)
    return directives.parse_directives(Path("job.sh"), directives.directive_options(PARAMETERS))


def given(**values):
    return {name: values.get(name) for name in PARAMETERS if name != "command"} | {"command": ["job.sh"]}


def test_all_options_count_in_lines_of_ours():
    found = read(
        "#!/bin/bash\n# a comment\n\n"
        "#COTENANT -J big --gpus=2 --gpu-mem 12G   # why\n"
        "#COTENANT --exclusive --max-slowdown 1.5 -t2:00:00\n"
        "#COTENANT --no-requeue --sharing none -D /tmp\n"
        "echo\n#COTENANT --gpus 9\n"
    )
    assert found.values == {
        "job_name": "big",
        "gpus": "2",
        "gpu_mem": "12G",
        "exclusive": True,
        "slowdown": 1.5,
        "time": "2:00:00",
        "requeue": False,
        "share": "none",
        "chdir": Path("/tmp"),
    }
    assert found.warnings == ()


def test_slurm_s_count_as_far_as_they_mean_something():
    found = read(
        "#!/bin/bash\n#SBATCH --job-name=s\n#SBATCH --partition=gpu -N 1\n#SBATCH -t 30 --mem 40G\n"
        "#SBATCH --gpus-per-node=a100:2\n#SBATCH -p long\n#SBATCHING\n"
    )
    assert found.values == {"job_name": "s", "time": "30", "gpus": "a100:2"}
    assert found.warnings == (
        "job.sh:3: `--partition=gpu` of #SBATCH is left out: it has no meaning here",
        "job.sh:3: `-N=1` of #SBATCH is left out: it has no meaning here",
        "job.sh:4: `--mem=40G` of #SBATCH is left out: it has no meaning here",
        "job.sh:6: `-p=long` of #SBATCH is left out: it has no meaning here",
    )


def test_ours_win_over_slurm_s_wherever_they_stand():
    assert read("#COTENANT -J ours\n#SBATCH -J theirs --nice=3\n").values == {"job_name": "ours", "nice": 3}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--no-such 3", "job.sh:2: no option `--no-such`"),
        ("train.py", "job.sh:2: no option `train.py`"),
        ("--nice x", "job.sh:2: `--nice` is `x`, wanted a number"),
        ("--gpus", "job.sh:2: `--gpus` has no value"),
        ("--gpus --hold", "job.sh:2: `--gpus` has no value"),
        ("--hold=yes", "job.sh:2: `--hold` takes no value"),
        ("--sharing mbs", "job.sh:2: `--sharing` is `mbs`, wanted one of auto, none, time, mps, mig"),
        ("--gpus two", "job.sh:2: `--gpus`: `--gpus=two` is no number from 1 to 1024"),
        ("-t soon", "job.sh:2: `-t`: `soon` is not a duration"),
        ("--gpu-mem=12X", "job.sh:2: `--gpu-mem`: `12X` is not a size in bytes"),
        ("-a 9-1", "job.sh:2: `-a`: array `9-1`"),
        ("-d after:1", "job.sh:2: `-d`: dependency `after:1` is not understood"),
        ("-J 'x", "job.sh:2: #COTENANT cannot be split into words"),
    ],
)
def test_a_wrong_line_of_ours_is_an_error_with_its_place(line, reason):
    with pytest.raises(JobFileError) as caught:
        read(f"#!/bin/sh\n#COTENANT {line}\n")
    assert str(caught.value).startswith(reason)


def test_a_wrong_line_of_slurm_s_is_left_out():
    found = read("#SBATCH --nice=x\n#SBATCH 'x\n#SBATCH -t UNLIMITED\n")
    assert found.values == {}
    assert len(found.warnings) == 3
    assert found.warnings[2] == "job.sh:3: `-t`: `UNLIMITED` is not a duration; it is left out"


def test_the_command_line_wins(capsys):
    Path("job.sh").write_text("#COTENANT -J script --nice 5\n#SBATCH -p x\n")
    told = with_directives(given(job_name="line"))
    assert (told["job_name"], told["nice"]) == ("line", 5)
    assert capsys.readouterr().err == "warning: job.sh:2: `-p=x` of #SBATCH is left out: it has no meaning here\n"
    assert with_directives(given(nice=0))["nice"] == 0


def test_programs_are_not_searched_for_options():
    assert with_directives(given() | {"command": ["true"]})["nice"] is None
    Path("tool").write_bytes(b"\x7fELF\n#COTENANT --nice 3\n")
    assert with_directives(given() | {"command": ["./tool"]})["nice"] is None
    Path("tool").write_text("#!/bin/sh\n#COTENANT --nice 3\n")
    assert with_directives(given() | {"command": ["./tool"]})["nice"] == 3
    assert with_directives(given() | {"command": ["./gone"]})["nice"] is None
