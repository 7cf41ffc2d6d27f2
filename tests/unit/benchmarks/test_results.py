"""What a long benchmark keeps of a run that was stopped."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from benchmarks._lib import results
from benchmarks._lib.results import ResultCache

if TYPE_CHECKING:
    from pathlib import Path


def fail() -> None:
    raise AssertionError("made a cached result again")


@pytest.fixture
def at_commit(monkeypatch):
    return lambda name: monkeypatch.setattr(results, "commit", lambda: name)


def test_a_stopped_run_goes_on_with_the_results_that_it_cached(tmp_path: Path, at_commit):
    at_commit("abc")
    file = tmp_path / "cache.jsonl"
    first = ResultCache(file)
    assert first.get("a", lambda: ["| 1 |"]) == ["| 1 |"]
    file.write_text(file.read_text().replace('"took_s": 0.0', '"took_s": 30.0'))

    again = ResultCache(file)

    assert again.get("a", fail) == ["| 1 |"]
    assert again.get("b", lambda: "made") == "made"
    assert again.saved_s == 30.0


def test_results_of_another_commit_are_made_again(tmp_path: Path, at_commit):
    at_commit("abc")
    ResultCache(tmp_path / "cache.jsonl").get("a", lambda: 1)
    at_commit("def")
    assert ResultCache(tmp_path / "cache.jsonl").get("a", lambda: 2) == 2


def test_a_drawn_figure_does_not_make_a_page_of_an_uncommitted_tree(tmp_path: Path, monkeypatch):
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path))
    folder = tmp_path / "benchmarks" / "results"
    folder.mkdir(parents=True)
    (folder / "figure.svg").write_text("old")
    (tmp_path / "code.py").write_text("old")
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "all")):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setattr(results, "RESULTS", folder)
    (folder / "figure.svg").write_text("new")
    clean = results.commit()
    (tmp_path / "code.py").write_text("new")
    assert not clean.endswith("-dirty")
    assert results.commit() == f"{clean}-dirty"


def test_nothing_is_cached_without_a_file():
    cache = ResultCache(None)
    assert [cache.get("a", lambda: 1), cache.get("a", lambda: 2)] == [1, 2]
