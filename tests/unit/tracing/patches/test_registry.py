"""The table of patches: what is applied when, and that undoing restores what was there."""

from __future__ import annotations

import sys
import types

import pytest

from cotenant.tracing import loaded_modules
from cotenant.tracing.patches.registry import HookPatch, ImportPatch, Patch, PatchTable, Phase, patch_attributes


class Base:
    def size(self):
        return 1


class Derived(Base):
    pass


@pytest.fixture
def module(monkeypatch):
    """A loaded module `patched_library`, with a function, two classes and a submodule that holds the function."""
    made = types.ModuleType("patched_library")
    made.read = lambda: "original"
    made.Base, made.Derived = type("Base", (Base,), {}), type("Derived", (Derived,), {})
    inner = types.ModuleType("patched_library.inner")
    inner.read, inner.other = made.read, lambda: "other"
    monkeypatch.setitem(sys.modules, "patched_library", made)
    monkeypatch.setitem(sys.modules, "patched_library.inner", inner)
    return made


def patch(target, replacement, **more):
    return Patch(target=target, replacement=replacement, phase=more.pop("phase", Phase.DATA), reason="a test", **more)


def test_a_patch_is_applied_and_undone(module):
    original = module.read
    table = PatchTable([patch("patched_library:read", lambda: "new")])
    assert module.read() == "original"
    table.apply()
    assert module.read() == "new"
    table.undo()
    assert module.read is original


def test_a_wrapping_patch_gets_the_present_value(module):
    table = PatchTable([patch("patched_library:read", lambda original: lambda: original() + ", wrapped", wraps=True)])
    table.apply()
    assert module.read() == "original, wrapped"


def test_a_second_patch_of_a_target_must_say_so_and_wraps_the_first(module):
    first = patch("patched_library:read", lambda: "first")
    second = patch("patched_library:read", lambda original: lambda: original() + ", second", wraps=True)
    with pytest.raises(ValueError, match="two patches of `patched_library:read`"):
        PatchTable([first, second])
    table = PatchTable([first, Patch(**{**vars(second), "stacks": True})])
    table.apply()
    assert module.read() == "first, second"
    table.undo()
    assert module.read() == "original"


def test_phases_decide_the_order_and_then_the_order_of_adding(module):
    def saying(word, phase):
        return patch(
            "patched_library:read", lambda original: lambda: original() + word, wraps=True, stacks=True, phase=phase
        )

    PatchTable([saying(" 3", Phase.DATA), saying(" 1", Phase.DEVICE), saying(" 2", Phase.DEVICE)]).apply()
    assert module.read() == "original 1 2 3"


def test_an_attribute_that_a_class_inherits_is_removed_again(module):
    table = PatchTable([patch("patched_library:Derived.size", lambda self: 2)])
    table.apply()
    assert (module.Derived().size(), Base().size()) == (2, 1)
    table.undo()
    assert "size" not in vars(module.Derived)
    assert module.Derived().size() == 1


def test_an_absent_target_is_skipped_unless_it_is_to_be_created(module):
    table = PatchTable([patch("patched_library:absent", 1), patch("patched_library:made", 2, create=True)])
    assert [entry.is_present() for entry in table] == [False, False]
    table.apply()
    assert (hasattr(module, "absent"), module.made) == (False, 2)
    table.undo()
    assert not hasattr(module, "made")


def test_modules_that_hold_the_same_object_are_patched_too(module, monkeypatch):
    inner = sys.modules["patched_library.inner"]
    monkeypatch.setitem(sys.modules, "patched_library.gone", types.ModuleType("patched_library.gone"))
    monkeypatch.setattr(loaded_modules, "_noted", [])
    monkeypatch.setattr(loaded_modules, "_last_noted", object())
    loaded_modules.note_loaded()
    monkeypatch.delitem(sys.modules, "patched_library.gone")
    table = PatchTable([patch("patched_library:read", lambda: "new", also_in="patched_library")])
    table.apply()
    assert (module.read(), inner.read(), inner.other()) == ("new", "new", "other")
    table.undo()
    assert (module.read(), inner.read()) == ("original", "original")


def test_entries_are_applied_once(module):
    words = []
    hook = HookPatch(target="patched_library", register=lambda: words.append("on"), phase=Phase.DATA, reason="a test")
    table = PatchTable([hook])
    table.apply()
    table.add([HookPatch(**{**vars(hook), "register": lambda: words.append("more")})])
    table.apply()
    assert words == ["on", "more"]


def test_a_hook_is_undone_by_its_handle_or_function(module):
    words = []
    handle = types.SimpleNamespace(remove=lambda: words.append("removed"))
    hooks = [
        HookPatch(target="patched_library", register=made, phase=Phase.DATA, reason="a test")
        for made in (lambda: handle, lambda: lambda: words.append("called"), lambda: None)
    ]
    table = PatchTable(hooks)
    table.apply()
    table.undo()
    assert words == ["called", "removed"]


LIBRARY = """
def read():
    return "original"
"""


@pytest.fixture
def unloaded(tmp_path, monkeypatch):
    """The name of a module that can be imported and was not."""
    (tmp_path / "late_library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    yield "late_library"
    sys.modules.pop("late_library", None)


def test_a_patch_waits_for_the_import_of_its_module(unloaded):
    table = PatchTable([patch("late_library:read", lambda: "new"), patch("late_library:absent", 1)])
    assert [entry.is_present() for entry in table] == [None, None]
    table.apply()
    import late_library

    assert late_library.read() == "new"
    assert not hasattr(late_library, "absent")
    table.undo()
    assert late_library.read() == "original"


def test_an_undone_table_ignores_later_imports(unloaded):
    table = PatchTable([patch("late_library:read", lambda: "new")])
    table.apply()
    table.undo()
    import late_library

    assert late_library.read() == "original"


def test_a_module_can_name_its_own_patches_when_it_is_imported(unloaded):
    def expand(module):
        return patch_attributes(module.__name__, {"read": lambda: "new"}, phase=Phase.DATA, reason="a test")

    PatchTable([ImportPatch(target="late_library", expand=expand, phase=Phase.DATA, reason="a test")]).apply()
    import late_library

    assert late_library.read() == "new"


def test_targets_of_a_group_are_of_a_module_or_of_a_class():
    common = {"phase": Phase.DATA, "reason": "a test"}
    assert [entry.target for entry in patch_attributes("torch.cuda", {"init": 1}, **common)] == ["torch.cuda:init"]
    assert [entry.target for entry in patch_attributes("torch:Tensor", {"data": 1}, **common)] == ["torch:Tensor.data"]
