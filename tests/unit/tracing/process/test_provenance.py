"""The provenance of a trace: source files, settings and site folders."""

from __future__ import annotations

import hashlib
import importlib
import sys

import pytest

import cotenant.core.units
from cotenant.core.trace import TraceHeader
from cotenant.tracing import loaded_modules
from cotenant.tracing.process import provenance as module
from cotenant.tracing.process.provenance import file_digest, note_preloaded, site_folders, with_provenance


@pytest.fixture
def local_module(tmp_path, monkeypatch):
    (tmp_path / "my_local_model.py").write_text("WIDTH = 8\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("my_local_model")
    yield tmp_path / "my_local_model.py"
    del sys.modules["my_local_model"]


def provenance():
    return with_provenance(TraceHeader(torch_version="2.13.0"))


def test_a_module_of_the_job_is_a_source(local_module):
    recorded = dict(provenance().sources)
    assert recorded[str(local_module)] == hashlib.sha256(b"WIDTH = 8\n").hexdigest()


def test_modules_that_a_fork_server_has_loaded_are_looked_at_once(local_module, monkeypatch):
    monkeypatch.setattr(module, "_preloaded", {})
    monkeypatch.setattr(loaded_modules, "_last_noted", object())
    monkeypatch.setattr(loaded_modules, "_noted", [])
    note_preloaded()
    assert loaded_modules.loaded_later() == []
    monkeypatch.setattr(sys.modules["my_local_model"], "__file__", None)
    later = local_module.with_name("my_later_model.py")
    later.write_text("")
    importlib.import_module("my_later_model")
    assert {str(local_module), str(later)} <= set(dict(provenance().sources))
    del sys.modules["my_later_model"]
    local = sys.modules.pop("my_local_model")
    assert not {str(local_module), str(later)} & set(dict(provenance().sources))
    sys.modules["my_local_model"] = local


def test_python_installed_packages_and_cotenant_are_not():
    paths = [path for path, _ in provenance().sources]
    assert hashlib.__file__ not in paths
    assert pytest.__file__ not in paths
    assert cotenant.core.units.__file__ not in paths


def test_a_module_of_an_installed_package_is_not(tmp_path, monkeypatch):
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "my_installed_model.py").write_text("")
    monkeypatch.syspath_prepend(str(site))
    importlib.import_module("my_installed_model")
    recorded = provenance()
    del sys.modules["my_installed_model"]
    assert str(site / "my_installed_model.py") not in dict(recorded.sources)
    assert str(site) in recorded.site_folders


def test_a_path_that_leads_out_of_an_installed_package_is(local_module, monkeypatch):
    site = local_module.parent / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(sys.modules["my_local_model"], "__file__", f"{site}/../{local_module.name}")
    assert str(local_module) in dict(provenance().sources)


def test_only_settings_that_are_set_are_recorded(monkeypatch):
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    assert provenance().settings == {}
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "x")
    assert provenance().settings == {"PYTORCH_ALLOC_CONF": "x"}


def test_site_folders_exist_and_have_their_standard_names(tmp_path):
    for name in ("site-packages", "dist-packages", "other"):
        (tmp_path / name).mkdir()
    path = [str(tmp_path / name) for name in ("site-packages", "dist-packages", "other")]
    assert site_folders([*path, "/nowhere/site-packages", ""]) == sorted(path[:2])


def test_a_digest_is_that_of_the_file(tmp_path):
    library = tmp_path / "x.so"
    library.write_bytes(b"1")
    before = file_digest(library)
    library.write_bytes(b"22")
    assert file_digest(library) not in {before, None}
    assert file_digest(tmp_path / "nowhere.py") is None
