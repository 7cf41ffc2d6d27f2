"""Names of loaded modules: those that were noted before a fork, and those that came later."""

from __future__ import annotations

import sys
import types

import pytest

from cotenant.tracing import loaded_modules


@pytest.fixture
def load(monkeypatch):
    """Have modules of these names loaded; nothing was noted yet."""
    monkeypatch.setattr(loaded_modules, "_noted", [])
    monkeypatch.setattr(loaded_modules, "_last_noted", object())

    def load(*names):
        for name in names:
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))

    return load


def test_modules_have_a_prefix_whether_they_were_noted_or_came_later(load):
    load("lib_a", "lib_b.one", "lib_b", "lib_bc", "lib_c")
    assert sorted(loaded_modules.loaded_with_prefix("lib_b")) == ["lib_b", "lib_b.one", "lib_bc"]
    loaded_modules.note_loaded()
    assert loaded_modules.loaded_later() == []
    load("lib_b.two", "lib_d")
    assert loaded_modules.loaded_later() == ["lib_d", "lib_b.two"]
    assert sorted(loaded_modules.loaded_with_prefix("lib_b")) == ["lib_b", "lib_b.one", "lib_b.two", "lib_bc"]


def test_all_modules_came_later_where_the_last_that_was_noted_is_loaded_again(load):
    load("lib_b", "lib_last")
    loaded_modules.note_loaded()
    load("lib_b.two", "lib_last")
    assert {"sys", "lib_b.two", "lib_last"} <= set(loaded_modules.loaded_later())
