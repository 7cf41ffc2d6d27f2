"""Lists of jobs, their progress, and the time that is left."""

from __future__ import annotations

import pytest

from cotenant.core.errors import UsageError
from cotenant.slurm.pack import parse_time_left, visible_gpus
from cotenant.slurm.pack_progress import PackProgress, read_lines
from cotenant.slurm.private_daemon import PackSettings


def test_lines_are_known_by_their_text_and_how_often_it_stands_there():
    first = read_lines("a\n\n# note\n b \na\n")
    assert [(line.number, line.text) for line in first] == [(1, "a"), (4, "b"), (5, "a")]
    assert len({line.key for line in first}) == 3
    moved = {line.key for line in read_lines("new\na\na\nb\n")}
    assert {line.key for line in first} < moved


def test_progress_survives_a_writer_that_was_killed(tmp_path):
    progress = PackProgress(tmp_path)
    progress.record([{"key": "a", "index": None, "state": "COMPLETED"}])
    progress.close()
    with (tmp_path / "done-0-1.jsonl").open("a") as file:
        file.write('{"key": "half')
    again = PackProgress(tmp_path)
    again.record([{"key": "b", "index": 3, "state": "FAILED"}])
    assert set(again.done()) == {("a", None), ("b", 3)}
    with pytest.raises(UsageError, match="another"):
        PackProgress(tmp_path)
    other = PackProgress(tmp_path, (1, 2))  # another part of the same list
    assert set(other.done()) == {("a", None), ("b", 3)}
    other.close()
    again.close()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0:30\n", 30.0),
        ("3:04", 184.0),
        ("2:03:04", 7384.0),
        ("1-02:03:04", 93784.0),
        ("INVALID", 0.0),
        ("UNLIMITED", None),
        ("NOT_SET", None),
        ("", None),
    ],
)
def test_the_time_that_is_left(text, wanted):
    assert parse_time_left(text) == wanted


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({}, None),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "1"),
        ({"SLURM_JOB_ID": "5", "CUDA_VISIBLE_DEVICES": "0,1"}, "0,1"),
    ],
)
def test_the_gpus_of_an_allocation(env, wanted):
    assert visible_gpus(env) == wanted


@pytest.mark.parametrize(
    "env",
    [{"SLURM_JOB_ID": "5"}, {"CUDA_VISIBLE_DEVICES": ""}, {"SLURM_JOB_ID": "5", "CUDA_VISIBLE_DEVICES": "NoDevFiles"}],
)
def test_an_allocation_without_gpus_is_refused(env):
    with pytest.raises(UsageError, match="no GPU"):
        visible_gpus(env)


def test_settings_are_a_configuration_of_the_daemon(tmp_path):
    from cotenant.daemon.config import loader

    settings = PackSettings(visible="0", simulate="2xA100-40GB", policy="best-fit", policy_options={"warmup_s": 0})
    path = tmp_path / 'a "b"' / "config.toml"
    path.parent.mkdir()
    path.write_text(settings.toml(path.parent))
    config = loader.load((path,), {}, {})
    assert (config.gpus.visible, config.policy.name, config.policy.options) == ("0", "best-fit", {"warmup_s": 0})
    assert (config.daemon.state_dir, config.scheduling.stop_grace_s) == (str(path.parent), 60.0)
