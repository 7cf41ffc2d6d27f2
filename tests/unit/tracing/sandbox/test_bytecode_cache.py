"""Modules without bytecode beside them are compiled once, and every source gets its own code."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from cotenant.tracing.patches.registry import PatchTable
from cotenant.tracing.sandbox import bytecode_cache
from cotenant.tracing.sandbox.bytecode_cache import BytecodeCache


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the files that Python compiles itself, while the cache of the test is in use."""
    paths: list[str] = []
    original = SourceFileLoader.source_to_code

    def source_to_code(self, data, path, **options):
        paths.append(path)
        return original(self, data, path, **options)

    monkeypatch.setattr(SourceFileLoader, "source_to_code", source_to_code)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return paths


def load(path: Path) -> object:
    spec = importlib.util.spec_from_file_location("module_of_a_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.answer()


def test_a_source_is_compiled_once_and_again_when_it_changed(tmp_path, compiled):
    source = tmp_path / "module.py"
    source.write_text("def answer(): return 1\n")
    before = source.stat()
    table = PatchTable(bytecode_cache.patches(str(tmp_path / "cache")))
    table.apply()
    try:
        assert [load(source), load(source)] == [1, 1]
        assert compiled == [str(source)]
        source.write_text("def answer(): return 2\n")
        os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))  # same size and time: a `.pyc` would be taken
        assert [load(source), load(source)] == [2, 2]
        assert len(compiled) == 2
        copy = tmp_path / "copy.py"
        copy.write_bytes(source.read_bytes())
        load(copy)
        assert compiled[2:] == [str(copy)], "tracebacks name the file"
    finally:
        table.undo()
    assert not list(tmp_path.rglob("*.pyc"))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda content: content[:-1], id="cut off"),
        pytest.param(lambda content: content[:40] + bytes([content[40] ^ 1]) + content[41:], id="one bit"),
        pytest.param(lambda content: b"", id="empty"),
    ],
)
def test_a_damaged_entry_is_none(tmp_path, damage):
    cache = BytecodeCache(str(tmp_path))
    name = cache.name_of(b"1", "one.py")
    cache.write(name, compile("1", "one.py", "exec"))
    assert cache.read(name) is not None
    Path(name).write_bytes(damage(Path(name).read_bytes()))
    assert cache.read(name) is None


def test_a_link_is_not_followed(tmp_path):
    cache = BytecodeCache(str(tmp_path))
    name, other = cache.name_of(b"1", "one.py"), str(tmp_path / "other")
    cache.write(name, compile("1", "one.py", "exec"))
    Path(name).rename(other)
    Path(name).symlink_to(other)
    assert cache.read(name) is None


def test_a_full_folder_loses_its_older_half(tmp_path, monkeypatch):
    monkeypatch.setattr(bytecode_cache, "MAX_ENTRIES", 4)
    cache, names = BytecodeCache(str(tmp_path)), [str(tmp_path / "00" / str(index)) for index in range(5)]
    for at, name in enumerate(names):
        cache.write(name, compile("1", "one.py", "exec"))
        os.utime(name, (at, at))
    assert [Path(name).exists() for name in names] == [False, False, True, True, True]


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "cache").write_text("no folder")
    cache = BytecodeCache(str(tmp_path / "cache"))
    name = cache.name_of(b"1", "one.py")
    cache.write(name, compile("1", "one.py", "exec"))
    assert cache.read(name) is None


@pytest.mark.parametrize(("env", "folder"), [({"HOME": "/home/ann"}, "/home/ann/.cache/cotenant/bytecode"), ({}, None)])
def test_the_default_folder_is_in_the_cache_of_the_user(env, folder):
    assert bytecode_cache.default_folder(env) == folder
