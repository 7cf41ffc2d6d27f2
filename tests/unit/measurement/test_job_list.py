"""Files of jobs: what is read, and that an error names the file and the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.core.errors import UsageError
from cotenant.measurement.job_list import SETTINGS_SCRIPT, JobGroup, read_jobs

ROOT = Path(__file__).parents[3]


@pytest.fixture
def write(tmp_path):
    (tmp_path / "train.py").write_text("")

    def write(text: str) -> Path:
        path = tmp_path / "jobs.toml"
        path.write_text(text)
        return path

    return write


JOB = '[[job]]\nname = "a"\nscript = "train.py"\n'
GROUP = "[[group]]\njobs = ['a', 'a']\n"


def test_defaults_are_laid_under_each_job(write):
    jobs = read_jobs(write(f"[defaults]\nsteps = 7\nhistory = false\n{JOB}steps = 9\nargs = ['--x', '1']\n")).jobs
    assert [(job.name, job.steps, job.history, job.args) for job in jobs] == [("a", 9, False, ("--x", "1"))]


def test_scripts_are_found_from_the_folder_of_the_file(write, tmp_path):
    (job,) = read_jobs(write(JOB)).jobs
    assert job.command == (str(tmp_path / "train.py"),)


def test_settings_are_made_by_a_script_in_front(write, tmp_path):
    (job,) = read_jobs(write(JOB + 'settings = { "cudnn.benchmark" = true }\nargs = ["-v"]')).jobs
    assert job.command == (str(SETTINGS_SCRIPT), "cudnn.benchmark=true", str(tmp_path / "train.py"), "-v")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("[[job", "not TOML:", id="not TOML"),
        pytest.param("", "no `[[job]]`", id="no job"),
        pytest.param("[jobs]\n" + JOB, "`jobs` is not known", id="unknown table"),
        pytest.param("[defaults]\nstep = 1\n" + JOB, "`defaults.step` is not known", id="unknown default"),
        pytest.param("[defaults]\nname = 'b'\n" + JOB, "`defaults.name` is not known", id="a default name"),
        pytest.param("[[job]]\nname = 'a'\n", "`job[1].script` is missing", id="no script"),
        pytest.param(JOB + JOB.replace("train", "gone").replace('"a"', '"b"'), "`job[2].script`", id="script is gone"),
        pytest.param(JOB + JOB, "two jobs are named `a`", id="same name twice"),
        pytest.param(JOB + "steps = 'x'", "`job[1].steps` must be int, got 'x'", id="wrong kind"),
        pytest.param(JOB + "steps = true", "`job[1].steps` must be int, got True", id="a bool is no number"),
        pytest.param(JOB + "limit_s = 0", "`job[1].limit_s` must be > 0, got 0", id="zero"),
        pytest.param(JOB + "warmup_steps = -1", "`job[1].warmup_steps` must be >= 0, got -1", id="negative"),
        pytest.param(JOB + "steps = 2\nwarmup_steps = 2", "`job[1].warmup_steps` is 2 of 2 steps", id="all warm-up"),
        pytest.param(JOB + "args = [1]", "`job[1].args` must hold strings, got 1", id="args are texts"),
        pytest.param(JOB + "env = { A = 1 }", "`job[1].env` must hold strings, got 1", id="env is texts"),
        pytest.param(JOB.replace('"a"', '"../a"'), "`job[1].name` is `../a`", id="a name is a folder"),
        pytest.param(JOB + "[[pair]]\njobs = ['a']", "`pair[1].jobs` is ['a']", id="a pair of one"),
        pytest.param(JOB + "[[pair]]\njobs = ['a', 'z']", "`pair[1].jobs`: no job is named `z`", id="unknown partner"),
        pytest.param(JOB + "[[group]]\njobs = ['a']", "`group[1].jobs` is ['a']", id="a group of one"),
        pytest.param(JOB + "[[group]]\njobs = ['a', 'z']", "`group[1].jobs`: no job is named `z`", id="unknown member"),
        pytest.param(JOB + GROUP + "sharing = 'mps:0'", "'mps:0' is no way to share", id="no percent"),
        pytest.param(JOB + GROUP + "sharing = ['mig']", "'mig' is no way to share", id="no profile"),
        pytest.param(JOB + GROUP + "sharing = ['mig:9g.5gb']", "'mig:9g.5gb' is no way", id="no such profile"),
        pytest.param(JOB + "batch_sizes = [8]", "`job[1].args` has no `{batch_size}`", id="size is not used"),
        pytest.param(JOB + "batch_sizes = [0]", "`job[1].batch_sizes` is [0]", id="size of zero"),
    ],
)
def test_errors_name_file_and_key(write, text, message):
    path = write(text)
    with pytest.raises(UsageError) as error:
        read_jobs(path)
    assert error.value.message.startswith(str(path))
    assert message in error.value.message


def test_only_takes_names_and_tags(write):
    listed = read_jobs(write(JOB + "tags = ['cnn']\n" + JOB.replace('"a"', '"b"') + "[[pair]]\njobs = ['a', 'b']"))
    assert [job.name for job in listed.only("c*").jobs] == ["a"]
    assert [job.name for job in listed.only("b").jobs] == ["b"]
    assert listed.only("c*").groups == ()
    assert listed.only("[ab]").groups == (JobGroup(jobs=("a", "b")),)
    with pytest.raises(UsageError, match="no job of"):
        listed.only("z*")


@pytest.mark.parametrize(("name", "at_least"), [("default.toml", 60), ("pairs.toml", 3)])
def test_the_shipped_campaigns_are_well_formed(name, at_least):
    assert len(read_jobs(ROOT / "benchmarks" / "campaigns" / name).jobs) >= at_least


def test_a_group_has_one_run_for_each_way_to_share(write):
    listed = read_jobs(write(JOB + GROUP + "sharing = ['time-sliced', 'mps:30', 'mig:3g.20gb,1g.5gb+me']"))
    assert [(group.jobs, group.way, group.detail) for group in listed.groups] == [
        (("a", "a"), "time-sliced", ""),
        (("a", "a"), "mps", "30"),
        (("a", "a"), "mig", "3g.20gb,1g.5gb+me"),
    ]
    assert read_jobs(write(JOB + GROUP)).groups == (JobGroup(jobs=("a", "a"), sharing="time-sliced"),)


def test_each_batch_size_is_a_job(write):
    listed = read_jobs(write(JOB + "batch_sizes = [8, 32]\nargs = ['-b', '{batch_size}']"))
    assert [(job.name, job.args) for job in listed.jobs] == [("a-b8", ("-b", "8")), ("a-b32", ("-b", "32"))]


def test_groups_of_other_order_have_other_folders():
    folders = [JobGroup(jobs=tuple(jobs)).folder for jobs in ("aab", "aba", "baa")]
    assert folders == ["a-x2-with-b", "a-with-b-with-a", "b-with-a-x2"]


def test_a_script_in_place_of_a_job_list_says_what_is_wanted(write):
    with pytest.raises(UsageError) as refused:
        read_jobs(write("import torch\n"))
    assert (
        refused.value.hint == "wanted: a list of `[[job]]` tables, each with `name` and `script`, not a script itself"
    )
