"""From a command line to the job that the daemon is asked to queue."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from pathlib import Path

import pytest

from cotenant.cli.jobs import job_command
from cotenant.cli.jobs.job_builder import build_job
from cotenant.cli.jobs.job_options import JobRequest, LaunchOptions
from cotenant.cli.jobs.submit import submit
from cotenant.cli.slurm_verbs import options as slurm_options
from cotenant.core.errors import JobFileError, UsageError
from cotenant.core.units import GiB, MiB

ROOT = Path(__file__).parents[3]
HERE = str(Path(sys.executable).parent)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{HERE}:/usr/bin:/bin")
    return tmp_path


def build(*words):
    """The job of the command line `cotenant submit WORDS`."""
    values = submit.make_context("submit", [*words]).params

    def group(kind):
        return kind(**{field.name: values[field.name] for field in dataclasses.fields(kind)})

    return build_job(group(JobRequest), group(LaunchOptions))


def script(folder, name="train.py", text="", mode=0o644):
    (folder / name).write_text(text)
    (folder / name).chmod(mode)
    return name


def test_a_plain_job_has_the_defaults(folder):
    job = build(script(folder), "--lr", "1")
    assert job["command"] == [f"{HERE}/python", "train.py", "--lr", "1"]
    assert (job["name"], job["gpus"], job["workdir"]) == ("train", 1, str(folder))
    assert (job["declared_bytes"], job["priority"], job["time_limit_s"], job["after"]) == (None, 0, None, [])
    submitted = {"SLURM_SUBMIT_DIR": str(folder), "SLURM_SUBMIT_HOST": os.uname().nodename}
    assert job["env"] == {**os.environ, **submitted}
    assert job["slurm_env"] == "job"


def test_the_pages_say_which_jobs_are_queued_again_when_they_are_lost(folder):
    """They said: all but those with `--no-requeue`. By default none is."""
    assert not build("true")["requeue"]
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "reference" not in path.parts]
    assert [path.name for path in pages if "--no-requeue" in path.read_text()] == []
    (help_text,) = [param.help for param in submit.params if param.name == "requeue"]
    assert "[default: no-requeue]" in help_text


def test_every_option_reaches_the_job(folder):
    (folder / "sub").mkdir()
    options = (
        "-J n --gres gpu:2 --gpu-mem 12G --exclusive --max-slowdown 1.5 --estimator traced -t 1:00:00 -d afterok:3:4 "
        "-o o-%j -e e-%j -D sub --nice 5 --export NONE --max-attempts 2"
    )
    job = build(*options.split(), "true")
    assert (job["gpus"], job["declared_bytes"], job["exclusive"], job["max_slowdown"]) == (2, 12 * GiB, True, 1.5)
    assert (job["time_limit_s"], job["after"], job["priority"], job["max_attempts"]) == (3600.0, ["3", "4"], -5, 2)
    assert (job["stdout_path"], job["stderr_path"]) == (f"{folder}/sub/o-%j", f"{folder}/sub/e-%j")
    assert (job["name"], job["workdir"], job["estimator"]) == ("n", f"{folder}/sub", "traced")
    assert "PYTEST_CURRENT_TEST" not in job["env"]


def test_stderr_goes_to_the_stdout_file_by_default(folder):
    job = build("-o", "/x/o", "true")
    assert (job["stdout_path"], job["stderr_path"]) == ("/x/o", "/x/o")


@pytest.mark.parametrize(
    ("words", "argv"),
    [
        pytest.param(["a.py", "x"], [f"{HERE}/python", "a.py", "x"], id="python script"),
        pytest.param(["./a.py"], [f"{HERE}/python", "./a.py"], id="python script with a path"),
        pytest.param(["b.sh", "x"], ["/usr/bin/bash", "b.sh", "x"], id="shell script"),
        pytest.param(["./tool", "x"], ["{folder}/tool", "x"], id="program with a path"),
        pytest.param(["env", "x"], ["/usr/bin/env", "x"], id="program on the PATH"),
    ],
)
def test_resolve_finds_interpreter_script_or_program(folder, words, argv):
    script(folder, "a.py")
    script(folder, "b.sh")
    script(folder, "tool", mode=0o755)
    found = job_command.resolve(words, f"{HERE}:/usr/bin:/bin", moved=False)
    assert found == [word.format(folder=folder) for word in argv]


def test_chdir_makes_the_script_s_path_absolute(folder):
    script(folder)
    assert job_command.resolve(["train.py"], HERE, moved=True)[1] == f"{folder}/train.py"


@pytest.mark.parametrize(
    ("words", "path", "message", "hint"),
    [
        pytest.param(["trian.py"], HERE, "no such file: `trian.py`", "did you mean `train.py`?", id="misspelled"),
        pytest.param(["/usr"], HERE, "`/usr` is a folder", "name the script in it", id="folder"),
        pytest.param(["q.sh"], HERE, "no such file: `q.sh`", None, id="absent"),
        pytest.param(["./train.py2"], HERE, "no such file: `train.py2`", "did you mean `train.py`?", id="program"),
        pytest.param(
            ["./plain"], HERE, "`./plain` is not executable", "chmod +x ./plain, or name its interpreter", id="mode"
        ),
        pytest.param(["plain"], HERE, "no such command: `plain`", "`./plain` is in this folder", id="not on the PATH"),
        pytest.param(
            ["a.ipynb"],
            HERE,
            "`a.ipynb` is a notebook, which a command runs",
            "`cotenant submit jupyter execute a.ipynb`, or `... papermill a.ipynb out.ipynb`, which keeps outputs",
            id="notebook",
        ),
        pytest.param(["train.py"], "/nowhere", "no `python` on the PATH", None, id="no python"),
    ],
)
def test_missing_files_and_programs_are_refused(folder, words, path, message, hint):
    script(folder)
    script(folder, "plain")
    with pytest.raises(UsageError) as caught:
        job_command.resolve(words, path, moved=False)
    assert (caught.value.message, caught.value.hint) == (message, hint)


@pytest.mark.parametrize(("text", "count"), [("gpu", 1), ("gpu:3", 3), ("gpu:a100:2", 2), ("gpu:a100", 1)])
def test_gres_of_gpus_is_parsed(text, count):
    assert slurm_options.parse_gres(text) == count


@pytest.mark.parametrize("text", ["", "shard:2", "gpu:0", "gpu:1:2:3", "gpu:2:a100", "gpu:1025", "gpu:\u0661:\u0661"])
def test_unsupported_gres_is_refused(text):
    with pytest.raises(UsageError, match=r"must be (gpu:N|a number from 1 to 1024), got"):
        slurm_options.parse_gres(text)


@pytest.mark.parametrize(("text", "count"), [("1", 1), ("a100:4", 4), ("1024", 1024)])
def test_gpu_counts_are_parsed(text, count):
    assert slurm_options.parse_gpus(text) == count


@pytest.mark.parametrize("text", ["", "0", "-1", "a100", "1025", "two", "1.5"])
def test_invalid_gpu_counts_are_refused(text):
    with pytest.raises(UsageError, match="must be a number from 1 to 1024, got"):
        slurm_options.parse_gpus(text)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (None, {}),
        ("afterok:3", {"after": ["3"]}),
        ("afterok:3:4", {"after": ["3", "4"]}),
        ("afterok:3,afterok:5_1", {"after": ["3", "5_1"]}),
        ("afterany:3,afternotok:4", {"after_any": ["3"], "after_failed": ["4"]}),
        ("singleton", {"singleton": True}),
        ("afterok:3,singleton", {"after": ["3"], "singleton": True}),
    ],
)
def test_dependencies_are_parsed_by_kind(text, fields):
    nothing = {"after": [], "after_any": [], "after_failed": [], "singleton": False}
    assert slurm_options.parse_dependencies(text) == {**nothing, **fields}


@pytest.mark.parametrize("text", ["3", "aftercorr:3", "afterok", "afterok:", "afterok:3,", "singleton:3", "AFTEROK:3"])
def test_unsupported_dependencies_are_refused(text):
    with pytest.raises(UsageError, match="must be KIND:ID"):
        slurm_options.parse_dependencies(text)


def test_dependencies_are_resolved_to_ids():
    job = {**slurm_options.parse_dependencies("afterok:3:7_1,afterany:4"), "name": "n"}
    assert slurm_options.resolve_dependencies(job, lambda refs: [int(ref[0]) * 10 for ref in refs]) == {
        "after": [30, 70],
        "after_any": [40],
        "after_failed": [],
        "singleton": False,
        "name": "n",
    }


@pytest.mark.parametrize(
    ("option", "field", "value"),
    [
        ("--sharing=none", "exclusive", True),
        ("--sharing=auto", "exclusive", False),
        ("--hold", "hold", True),
        ("--requeue", "requeue", True),
        ("--priority=4", "priority", 4),
        ("--array=1-3%2", "array", {"tasks": [1, 2, 3], "limit": 2}),
        ("--begin=2026-12-01T00:00+00:00", "begin_at_s", 1796083200.0),
        ("--notify=mail -s done ann", "notify", "mail -s done ann"),
        ("--time=none", "time_limit_s", None),
    ],
)
def test_an_option_sets_its_field(option, field, value):
    assert build(option, "true")[field] == value


def test_a_job_inherits_the_umask_of_the_shell():
    before = os.umask(0o027)
    try:
        assert build("true")["umask"] == 0o027
    finally:
        assert os.umask(before) == 0o027, "asking has not changed it"


def test_nice_and_priority_exclude_each_other():
    with pytest.raises(UsageError, match="--nice and --priority exclude"):
        build("--nice=1", "--priority=1", "true")


ENV = {"PATH": "/bin", "HOME": "/h", "A": "1", "B": "2"}


@pytest.mark.parametrize(
    ("export", "env"),
    [
        pytest.param("ALL", ENV, id="all"),
        pytest.param("NONE", {"PATH": "/bin", "HOME": "/h"}, id="none"),
        pytest.param("A", {"PATH": "/bin", "HOME": "/h", "A": "1"}, id="one"),
        pytest.param("A,C=x=y", {"PATH": "/bin", "HOME": "/h", "A": "1", "C": "x=y"}, id="a new one"),
        pytest.param("ALL,A=9", {**ENV, "A": "9"}, id="all and one changed"),
    ],
)
def test_export_selects_the_environment(export, env):
    assert slurm_options.exported_environment(export, ENV) == env


def test_export_of_an_unset_variable_is_refused():
    with pytest.raises(UsageError, match="variable `NOPE` is not set"):
        slurm_options.exported_environment("NOPE", ENV)


def test_a_removed_current_folder_is_refused(folder, monkeypatch):
    (folder / "gone").mkdir()
    monkeypatch.chdir(folder / "gone")
    (folder / "gone").rmdir()
    with pytest.raises(UsageError, match="the current folder no longer exists"):
        build("true")


RAD = "# c\nconda activate tf\npython t.py\nm.model\nd\n32\nexclusive\n2\n2048\n3000\n40000\n8000\n"


@pytest.mark.parametrize(
    ("choice", "declared"),
    [("measured", 2048 * MiB), ("horus", 3000 * MiB), ("faketensor", None), ("gpumemnet", 8000 * MiB), ("none", None)],
)
def test_a_rad_file_sets_name_gpus_and_memory(folder, choice, declared):
    job = build("--rad-estimate", choice, script(folder, "j.rad", RAD))
    assert (job["name"], job["gpus"], job["declared_bytes"]) == ("j", 2, declared)
    assert job["source"] == f"{folder}/j.rad"
    assert job["command"][:2] == ["bash", "-lc"]


def test_options_override_the_rad_file(folder):
    job = build("--gpu-mem=1G", "--gpus=1", "-J", "n", script(folder, "j.rad", RAD))
    assert (job["name"], job["gpus"], job["declared_bytes"]) == ("n", 1, GiB)


@pytest.mark.parametrize(("policy", "exclusive"), [("exclusive", True), ("collocation", False)])
def test_the_policy_of_a_rad_file_decides_about_neighbors(folder, policy, exclusive):
    script(folder, "resnet.txt", "")
    job = build(script(folder, "k.rad", f"python r.py\npolicy: {policy}\nbatch_size: 8\nmodel: resnet.txt\n"))
    assert (job["exclusive"], job["declared_bytes"]) == (exclusive, None)
    assert (job["model_summary"], job["batch_size"]) == (f"{folder}/resnet.txt", 8)
    overridden = build("--no-exclusive" if exclusive else "--exclusive", f"{folder}/k.rad")
    assert overridden["exclusive"] is not exclusive


def test_a_summary_of_the_model_can_be_given_with_any_command(folder):
    (folder / "sub").mkdir()
    script(folder, "net.txt")
    job = build("--model-summary", "net.txt", "--batch-size=16", "-D", "sub", "bash", "-c", "python train.py")
    assert (job["model_summary"], job["batch_size"]) == (f"{folder}/net.txt", 16)
    script(folder, "resnet.txt")
    script(folder, "k.rad", "python r.py\npolicy: collocation\nbatch_size: 8\nmodel: resnet.txt\n")
    job = build("--batch-size", "32", "k.rad")
    assert (job["model_summary"], job["batch_size"]) == (f"{folder}/resnet.txt", 32)
    assert build("--model-summary", "net.txt", "k.rad")["batch_size"] == 8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model-summary", "none.txt", "--batch-size", "8"], "no such file: `.*/none.txt`"),
        (["--model-summary", "net.txt"], "`--model-summary` needs `--batch-size`"),
        (["--batch-size", "8"], "`--batch-size` needs `--model-summary`"),
    ],
)
def test_a_summary_needs_a_file_and_a_batch_size(folder, words, message):
    script(folder, "net.txt")
    with pytest.raises(UsageError, match=message):
        build(*words, script(folder))


def test_a_missing_summary_is_named_with_its_line(folder, capsys):
    job = build(script(folder, "k.rad", "python r.py\npolicy: collocation\nbatch_size: 8\nmodel: none.txt\n"))
    assert job["model_summary"] is None
    assert "k.rad:4: no such file: `none.txt`" in capsys.readouterr().err


def test_rad_file_takes_no_arguments(folder):
    with pytest.raises(UsageError, match="`--lr` follows it"):
        build(script(folder, "j.rad", RAD), "--lr")


def test_a_rad_file_must_be_utf_8(folder):
    (folder / "j.rad").write_bytes(b"# ok\n\xff\xfe\n")
    with pytest.raises(JobFileError, match=r"j.rad:2: is not UTF-8 text"):
        build("j.rad")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--chdir=nowhere", "is not a folder"),
        ("--gpu-mem=lots", "`--gpu-mem`: `lots` is not a size in bytes"),
        ("--time=soon", "`--time`: `soon` is not a duration"),
    ],
)
def test_invalid_option_values_are_refused(option, message):
    with pytest.raises(UsageError, match=message):
        build(option, "true")


def test_retries_and_time_slice_reach_the_job():
    job = build("--retries=2", "--time-slice=1:30:00", "true")
    assert (job["retries"], job["time_slice_s"]) == (2, 5400.0)
    plain = build("true")
    assert (plain["retries"], plain["time_slice_s"]) == (0, None)


def test_a_fifo_is_no_script_and_is_not_read(folder):
    os.mkfifo(folder / "train.py")
    signal.alarm(60)  # reading it never returns
    try:
        with pytest.raises(UsageError, match=r"`train\.py` is not a regular file"):
            build("train.py")
    finally:
        signal.alarm(0)


def test_a_link_to_nothing_names_what_it_points_to(folder):
    (folder / "train.py").symlink_to("gone.py")
    (folder / "loop.py").symlink_to("loop.py")
    for name, target in (("train.py", "gone.py"), ("loop.py", "loop.py")):
        with pytest.raises(UsageError, match=rf"`{name}` is a link to `{target}`, where no file is"):
            build(name)
