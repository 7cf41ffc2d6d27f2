"""The trace cache: an entry is valid while the sources of its trace are unchanged."""

from __future__ import annotations

import gzip
import os
import stat
import sys
from dataclasses import replace

import pytest

from cotenant.estimators import trace_cache as cache_module
from cotenant.estimators.trace_cache import TraceCache, default_folder, site_digest, trace_key
from cotenant.tracing.process.program import Program
from cotenant.tracing.process.provenance import file_digest
from traces import a_trace, alloc


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("import model\n")
    (folder / "model.py").write_text("WIDTH = 8\n")
    (folder / "config.yaml").write_text("batch: 8\n")
    return folder


@pytest.fixture
def cache(tmp_path):
    return TraceCache(tmp_path / "cache")


def key(folder, *args, **changes):
    fields = {"python": sys.executable, "kind": "script", "target": "train.py", "args": args}
    where = {"workdir": str(folder), "env": {"A": "1"}, "capability": (8, 0), "devices": 1, "steps": 3}
    program = {name: changes.pop(name) for name in list(changes) if name in fields}
    return trace_key(Program(**{**fields, **program}), **{**where, **changes})


def traced(folder, **header):
    """A trace that imported the model, and ran with these settings."""
    sources = ((str(folder / "model.py"), file_digest(folder / "model.py")),)
    return a_trace([alloc(0, 1)], sources=sources, **header)


def test_a_trace_comes_back_as_it_was(project, cache):
    trace = traced(project)
    cache.put("k", trace, {})
    assert cache.get("k", {}) == trace


def test_an_empty_cache_misses(cache):
    assert cache.get("k", {}) is None


def test_the_same_program_has_the_same_key(project):
    assert key(project, "--lr", "1") == key(project, "--lr", "1")


def test_a_key_depends_on_the_script(project):
    before = key(project)
    (project / "train.py").write_text("import model  # edited\n")
    assert key(project) != before


def test_a_key_depends_on_the_notebook(project):
    notebook = project / "train.ipynb"
    notebook.write_text("{}")
    before = key(project, kind="notebook", target="train.ipynb")
    notebook.write_text("[]")
    assert key(project, kind="notebook", target="train.ipynb") != before


def test_a_key_depends_on_files_that_arguments_name(project):
    args = ("--config=config.yaml",)
    before = key(project, *args)
    (project / "config.yaml").write_text("batch: 9\n")
    assert key(project, *args) != before


def test_a_key_depends_on_large_files_that_arguments_name(project, monkeypatch):
    monkeypatch.setattr(cache_module, "_READ_WHOLE_BYTES", 4)
    before = key(project, "config.yaml")
    (project / "config.yaml").write_text("batch: 10\n")
    assert key(project, "config.yaml") != before


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"args": ("--lr", "2")}, id="arguments"),
        pytest.param({"capability": (9, 0)}, id="compute capability"),
        pytest.param({"devices": 2}, id="number of GPUs"),
        pytest.param({"steps": 4}, id="steps"),
        pytest.param({"env": {"A": "2"}}, id="environment"),
        pytest.param({"python": "/usr/bin/env"}, id="interpreter"),
        pytest.param({"kind": "module"}, id="module, not script"),
    ],
)
def test_a_key_depends_on_what_may_change_the_trace(project, change):
    assert key(project, **change) != key(project)


@pytest.mark.parametrize(
    "name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG", "SHLVL", "SSH_CLIENT"]
)
def test_a_key_ignores_allocator_settings_and_terminal_variables(project, name):
    assert key(project, env={"A": "1", name: "x"}) == key(project)


def test_a_key_depends_on_the_code_that_traces(project, monkeypatch):
    before = key(project)
    monkeypatch.setattr(cache_module, "_tracer_digest", lambda: "other code")
    assert key(project) != before


def test_an_edited_import_is_a_miss(project, cache):
    cache.put("k", traced(project), {})
    (project / "model.py").write_text("WIDTH = 9\n")
    assert cache.get("k", {}) is None


def test_a_lost_import_is_a_miss(project, cache):
    cache.put("k", traced(project), {})
    (project / "model.py").unlink()
    assert cache.get("k", {}) is None


def test_an_installed_package_is_a_miss(project, cache, tmp_path):
    site = tmp_path / "site-packages"
    (site / "torch-2.13.0.dist-info").mkdir(parents=True)
    cache.put("k", traced(project, site_folders=(str(site),)), {})
    assert cache.get("k", {}) is not None
    (site / "torch-2.13.0.dist-info").rename(site / "torch-2.14.0.dist-info")
    assert cache.get("k", {}) is None


def test_a_reinstalled_package_is_a_miss(tmp_path):
    (tmp_path / "x-1.dist-info").mkdir()
    before = site_digest(tmp_path)
    os.utime(tmp_path / "x-1.dist-info", ns=(1, 1))
    assert site_digest(tmp_path) != before
    assert site_digest(tmp_path / "nowhere") is None


NAME = "PYTORCH_CUDA_ALLOC_CONF"


@pytest.mark.parametrize(
    ("before", "after", "now", "found"),
    [
        pytest.param({}, {}, {NAME: "x"}, True, id="a script that leaves it alone"),
        pytest.param({NAME: "x"}, {NAME: "x"}, {NAME: "y"}, True, id="found set, and left"),
        pytest.param({NAME: "x"}, {NAME: "x"}, {}, False, id="found set: what it does without is not known"),
        pytest.param({}, {NAME: "s"}, {}, True, id="sets its own"),
        pytest.param({}, {NAME: "s"}, {NAME: "y"}, False, id="set its own, perhaps because none was"),
    ],
)
def test_settings_changed_by_the_script_decide_whether_a_trace_is_valid(cache, before, after, now, found):
    cache.put("k", a_trace([alloc(0, 1)], sources=(), settings=after), before)
    assert (cache.get("k", now) is not None) == found


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"not gzip", id="not gzip"),
        pytest.param(gzip.compress(b"[]\n[]\n"), id="other JSON"),
        pytest.param(gzip.compress(b'{"schema": 99}\n{}\n'), id="another schema"),
        pytest.param(
            gzip.compress(b'{"schema": 1, "sources": [], "sites": {}, "before": {}, "after": {}}\n{"schema": 1}\n'),
            id="no trace in it",
        ),
    ],
)
def test_a_damaged_entry_is_a_miss(cache, project, damage):
    cache.put("k", traced(project), {})
    (cache.folder / "k.json.gz").write_bytes(damage)
    assert cache.get("k", {}) is None


def test_a_truncated_entry_is_a_miss(cache, project):
    cache.put("k", traced(project), {})
    path = cache.folder / "k.json.gz"
    path.write_bytes(path.read_bytes()[:-20])
    assert cache.get("k", {}) is None


def test_a_partial_trace_is_not_stored(cache, project):
    cache.put("k", replace(traced(project), partial=True), {})
    assert cache.get("k", {}) is None


def test_a_trace_without_provenance_is_not_stored(cache):
    cache.put("k", a_trace([alloc(0, 1)]), {})
    assert cache.get("k", {}) is None


def test_entries_are_readable_by_their_owner_only(cache, project):
    cache.folder.mkdir(mode=0o755)
    cache.put("k", traced(project), {})
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((cache.folder / "k.json.gz").stat().st_mode) == 0o600
    assert [path.name for path in cache.folder.iterdir()] == ["k.json.gz"]


def test_an_entry_of_another_user_is_a_miss(cache, project, monkeypatch):
    cache.put("k", traced(project), {})
    owner = os.getuid()
    monkeypatch.setattr(cache_module.os, "getuid", lambda: owner + 1)
    assert cache.get("k", {}) is None


def test_the_least_recently_used_entries_are_deleted_first(cache, project):
    trace = traced(project)
    for name in ("old", "used", "new"):
        cache.put(name, trace, {})
    sizes = [path.stat().st_size for path in cache.folder.iterdir()]
    for at, name in enumerate(("old", "used", "new")):
        os.utime(cache.folder / f"{name}.json.gz", ns=(at, at))
    assert cache.get("old", {}) is not None  # now the most recently used
    cache.limit_bytes = sum(sizes)
    cache.put("newest", trace, {})
    assert {path.name.split(".")[0] for path in cache.folder.iterdir()} == {"old", "new", "newest"}


def test_an_unwritable_folder_raises_nothing(tmp_path, project):
    (tmp_path / "file").write_text("")
    cache = TraceCache(tmp_path / "file" / "cache")
    cache.put("k", traced(project), {})
    assert cache.get("k", {}) is None


def test_the_default_folder_is_in_the_cache_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "cotenant" / "traces"
