"""Callbacks before and after the import of a module."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import pytest

from cotenant.tracing.patches.import_hooks import before_import, when_imported


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package `hooked_package` with a module `inner`, which can be imported and was not."""
    (tmp_path / "hooked_package").mkdir()
    (tmp_path / "hooked_package" / "__init__.py").write_text("")
    (tmp_path / "hooked_package" / "inner.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "hooked_package"
    for name in ("hooked_package", "hooked_package.inner"):
        sys.modules.pop(name, None)


def test_callbacks_run_once_after_the_module_was_executed(package):
    values = []
    when_imported("hooked_package.inner", lambda module: values.append(module.value))
    when_imported("hooked_package.inner", lambda module: values.append(module.value + 1))
    assert values == []
    module = importlib.import_module("hooked_package.inner")
    assert values == [1, 2]
    importlib.reload(module)
    assert values == [1, 2]


def test_a_callback_for_an_imported_module_runs_at_once(package):
    module = importlib.import_module("hooked_package.inner")
    found = []
    when_imported("hooked_package.inner", found.append)
    assert found == [module]


def test_finding_a_module_runs_no_callback(package):
    found = []
    when_imported("hooked_package.inner", found.append)
    assert importlib.util.find_spec("hooked_package.inner") is not None
    assert found == []
    importlib.import_module("hooked_package.inner")
    assert len(found) == 1


def test_a_callback_survives_a_failed_import(package, tmp_path):
    found = []
    when_imported("hooked_package.late", found.append)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("hooked_package.late")
    (tmp_path / "hooked_package" / "late.py").write_text("raise ValueError")
    importlib.invalidate_caches()
    with pytest.raises(ValueError):
        importlib.import_module("hooked_package.late")
    assert found == []
    (tmp_path / "hooked_package" / "late.py").write_text("value = 'a longer text, so that no cached code is taken'")
    importlib.invalidate_caches()
    importlib.import_module("hooked_package.late")
    assert len(found) == 1
    sys.modules.pop("hooked_package.late")


def test_a_callback_can_be_removed(package):
    found = []
    take_back = when_imported("hooked_package.inner", found.append)
    take_back()
    importlib.import_module("hooked_package.inner")
    assert found == []


def test_a_callback_before_the_import_runs_first_and_once(package):
    order = []
    before_import("hooked_package.inner", lambda: order.append("hooked_package.inner" in sys.modules))
    when_imported("hooked_package.inner", lambda module: order.append(module.value))
    importlib.import_module("hooked_package.inner")
    assert order == [False, 1]
