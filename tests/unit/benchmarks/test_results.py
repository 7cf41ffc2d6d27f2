"""`--write` is refused on a tree with uncommitted changes; result pages alone do not count as changes."""

from __future__ import annotations

import argparse
import subprocess

import pytest

from benchmarks._lib import results


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    pages = tmp_path / "benchmarks" / "results"
    pages.mkdir(parents=True)
    (tmp_path / "program.py").write_text("1\n")
    (pages / "old.md").write_text("old\n")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(results, "RESULTS", pages)
    return tmp_path


def parse(*arguments):
    parser = argparse.ArgumentParser()
    results.add_write_option(parser)
    return parser.parse_args(arguments)


def test_write_is_accepted_on_a_committed_tree(checkout):
    assert parse("--write").write is True
    assert parse().write is False


def test_write_is_accepted_when_only_result_pages_changed(checkout):
    (checkout / "benchmarks" / "results" / "old.md").write_text("new\n")
    (checkout / "benchmarks" / "results" / "added.md").write_text("new\n")
    assert parse("--write").write is True


@pytest.mark.parametrize("name", ["program.py", "added.py"])
def test_write_is_refused_on_a_changed_tree(checkout, capsys, name):
    (checkout / name).write_text("2\n")
    with pytest.raises(SystemExit) as refused:
        parse("--write")
    assert refused.value.code == 2
    assert f"needs a committed tree, found 1 changed files such as `{name}`" in capsys.readouterr().err
