"""Options in the script: found at its top, overruled by the command line, ignored with a warning if unknown."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cotenant.cli.jobs.directives import parse_directives
from cotenant.cli.jobs.job_builder import build_job
from cotenant.cli.jobs.job_options import JobRequest, LaunchOptions
from cotenant.cli.parameter_types import NONE
from cotenant.core.errors import JobFileError
from cotenant.core.units import GiB


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    return tmp_path


def read(text):
    Path("job.sh").write_text(text)
    return parse_directives(Path("job.sh"), JobRequest, LaunchOptions)


def build(program="job.sh", **request):
    return build_job(JobRequest(**request), LaunchOptions(command=(program,)))


def test_cotenant_directives_accept_every_option():
    found = read(
        "#!/bin/bash\n# a comment\n\n"
        "#COTENANT -J big --gpus=2 --gpu-mem 12G   # why\n"
        "#COTENANT --exclusive --max-slowdown 1.5 -t2:00:00\n"
        "#COTENANT --no-requeue --sharing none -D /tmp\n"
        "echo\n#COTENANT --gpus 9\n"
    )
    assert found.values == {
        "name": "big",
        "gpus": 2,
        "declared_bytes": 12 * GiB,
        "exclusive": True,
        "max_slowdown": 1.5,
        "time_limit_s": 7200.0,
        "requeue": False,
        "sharing": "none",
        "chdir": Path("/tmp"),
    }
    assert found.warnings == ()


def test_sbatch_directives_accept_supported_options_and_warn_about_others():
    found = read(
        "#!/bin/bash\n#SBATCH --job-name=s\n#SBATCH --partition=gpu -N 1\n#SBATCH -t 30 --mem 40G\n"
        "#SBATCH --gpus-per-node=a100:2\n#SBATCH -N 2 -A lab\n#SBATCHING\n#SBATCH --nice --part x\n"
    )
    assert found.values == {"name": "s", "time_limit_s": 1800.0, "gpus": 2, "nice": 100}
    assert found.warnings == (
        "job.sh:3: #SBATCH `--partition=gpu` is ignored: there is one queue",
        "job.sh:4: #SBATCH `--mem=40G` is ignored: only GPU memory is reserved, see --gpu-mem",
        "job.sh:6: #SBATCH `-A lab` is ignored: there are no accounts",
        "job.sh:6: #SBATCH `-N 2` is ignored: this machine is the only node",
        "job.sh:7: #SBATCH `ING` is no option; it is ignored",
        "job.sh:8: #SBATCH `--partition=x` is ignored: there is one queue",
    )


def test_gpus_per_task_count_for_every_task():
    assert read("#SBATCH -n 4 --gpus-per-task=2\n").values == {"ntasks": 4, "gpus": 8}


def test_cotenant_directives_override_sbatch_directives():
    assert read("#COTENANT -J ours\n#SBATCH -J theirs --nice=3\n").values == {"name": "ours", "nice": 3}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--no-such 3", "job.sh:2: no option `--no-such`"),
        ("train.py", "job.sh:2: no option `train.py`"),
        ("--nice x", "job.sh:2: `--nice`: must be a whole number, got `x`"),
        ("--gpus", "job.sh:2: `--gpus` has no value"),
        ("--gpus --hold", "job.sh:2: `--gpus` has no value"),
        ("--hold=yes", "job.sh:2: `--hold` takes no value"),
        ("--sharing mbs", "job.sh:2: `--sharing`: `mbs` is not one of `auto`, `none`, `time`, `mps`, `mig`"),
        ("--gpus two", "job.sh:2: `--gpus`: must be a number from 1 to 1024, got `two`"),
        ("-t soon", "job.sh:2: `-t`: `soon` is not a duration"),
        ("--gpu-mem=12X", "job.sh:2: `--gpu-mem`: `12X` is not a size in bytes"),
        ("-a 9-1", "job.sh:2: `-a`: array `9-1`"),
        ("-d after:1", "job.sh:2: `-d`: must be KIND:ID[:ID...] or singleton, got `after:1`"),
        ("-J 'x", "job.sh:2: #COTENANT cannot be split into words"),
    ],
)
def test_an_invalid_cotenant_directive_is_an_error_with_its_line(line, reason):
    with pytest.raises(JobFileError) as caught:
        read(f"#!/bin/sh\n#COTENANT {line}\n")
    assert str(caught.value).startswith(reason)


def test_an_invalid_sbatch_directive_is_ignored_with_a_warning():
    found = read("#SBATCH --nice=x\n#SBATCH 'x\n#SBATCH -t soon --exclusive=user -J a\n#SBATCH --no -H -c\n")
    assert found.values == {"name": "a", "hold": True}
    assert found.warnings == (
        "job.sh:1: #SBATCH `--nice=x`: must be a whole number, got `x`; it is ignored",
        "job.sh:2: #SBATCH: a ' is not closed; the line is ignored",
        "job.sh:3: #SBATCH `--exclusive=user`: `user` is not supported, give no value; it is ignored",
        "job.sh:3: #SBATCH `-t soon`: `soon` is not a duration; it is ignored",
        "job.sh:4: #SBATCH `--no` may be --no-kill, --no-requeue, --nodefile, --nodelist, --nodes; it is ignored",
        "job.sh:4: #SBATCH `-c` has no value; it is ignored",
    )


def test_no_time_limit_in_the_words_of_slurm():
    for text in ("UNLIMITED", "infinite", "0", "-1", "0:0"):
        assert read(f"#SBATCH -t {text}\n").values == {"time_limit_s": NONE}
    assert read("#SBATCH -t 1-\n").values == {"time_limit_s": 86400.0}


def test_the_command_line_overrides_directives(capsys):
    Path("job.sh").write_text("#COTENANT -J script --nice 5 -t 30\n#SBATCH -p x\n")
    job = build(name="line")
    assert (job["name"], job["priority"], job["time_limit_s"]) == ("line", -5, 1800.0)
    assert capsys.readouterr().err == "warning: job.sh:2: #SBATCH `-p x` is ignored: there is one queue\n"
    assert build(nice=0)["priority"] == 0


def test_none_on_the_command_line_clears_a_directive():
    Path("job.sh").write_text("#COTENANT -t 30 --gpu-mem 1G\n")
    job = build(time_limit_s=NONE, declared_bytes=NONE)
    assert (job["time_limit_s"], job["declared_bytes"]) == (None, None)


def test_directives_are_read_from_scripts_only():
    assert build("true")["priority"] == 0
    Path("tool").write_bytes(b"\x7fELF\n#COTENANT --nice 3\n")
    Path("tool").chmod(0o755)
    assert build("./tool")["priority"] == 0
    Path("tool").write_text("#!/bin/sh\n#COTENANT --nice 3\n")
    assert build("./tool")["priority"] == -3
