"""Names that a module takes from another at its import, which is imported when one of them is used."""

from __future__ import annotations

import importlib
import sys

import pytest

from cotenant.tracing.patches import late_names

METRIC = """
from slow_library import Model, TABLE
import slow_library

def load():
    return Model.from_pretrained("a name")

def knows(name):
    return name in TABLE and TABLE[name] == 1 and list(TABLE) == ["known"] and len(TABLE) == 1

def is_model(value):
    return isinstance(value, Model)

def derived():
    class Mine(Model):
        pass
    return Mine

def made():
    return type(Model()) is slow_library.Model
"""
LIBRARY = """
TABLE = {"known": 1}

class Model:
    @classmethod
    def from_pretrained(cls, name):
        return cls, name
"""


@pytest.fixture
def metric(tmp_path, monkeypatch):
    """A module `slow_metric` whose names from `slow_library` wait."""
    (tmp_path / "slow_library.py").write_text(LIBRARY)
    (tmp_path / "slow_metric.py").write_text(METRIC)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(late_names, "_TAKEN_BY", {"slow_metric": ("slow_library", "slow_library_that_is_absent")})
    undo = late_names._let_names_wait("slow_metric")
    yield "slow_metric"
    undo()
    for name in ("slow_metric", "slow_library"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("use", "result"),
    [
        pytest.param(lambda module: module.load()[1], "a name", id="a method of a class"),
        pytest.param(lambda module: module.knows("known") and not module.knows("x"), True, id="a table"),
        pytest.param(lambda module: module.is_model(1), False, id="a class to compare with"),
        pytest.param(lambda module: module.derived().__mro__[1].__module__, "slow_library", id="a base class"),
        pytest.param(lambda module: module.made(), True, id="the module itself"),
    ],
)
def test_the_other_module_is_imported_when_a_name_is_used(metric, use, result):
    module = importlib.import_module(metric)
    assert not {"slow_library", "slow_library_that_is_absent"} & set(sys.modules)
    assert use(module) == result
    assert type(sys.modules["slow_library"].Model) is type


def test_other_modules_get_the_real_one_while_the_first_is_imported(metric, tmp_path):
    (tmp_path / "slow_metric.py").write_text("import other_user\n" + METRIC)
    (tmp_path / "other_user.py").write_text("from slow_library import Model\nname = Model.__name__\n")
    module = importlib.import_module(metric)
    assert sys.modules.pop("other_user").name == "Model"
    assert module.Model is sys.modules["slow_library"].Model


def test_an_absent_module_is_absent_to_what_takes_names_from_it(metric, tmp_path):
    (tmp_path / "slow_library.py").unlink()
    importlib.invalidate_caches()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(metric)


def test_a_module_that_is_loaded_has_no_stand_in(metric):
    library = importlib.import_module("slow_library")
    assert importlib.import_module(metric).Model is library.Model


def test_an_import_that_fails_leaves_no_stand_in_to_others(metric, tmp_path):
    (tmp_path / "slow_metric.py").write_text("from slow_library import Model\n1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        importlib.import_module(metric)
    from slow_library import Model

    assert type(Model) is type


def test_names_wait_in_a_module_that_another_one_imports(metric, tmp_path, monkeypatch):
    (tmp_path / "slow_metric.py").write_text("import inner_metric\n" + METRIC)
    (tmp_path / "inner_metric.py").write_text("from slow_library import Model\n")
    monkeypatch.setitem(late_names._TAKEN_BY, "inner_metric", ("slow_library",))
    undo = late_names._let_names_wait("inner_metric")
    module = importlib.import_module(metric)
    assert "slow_library" not in sys.modules
    assert sys.modules.pop("inner_metric").Model.from_pretrained("a name")[1] == module.load()[1] == "a name"
    undo()


def test_the_real_module_is_behind_all_stand_ins(metric, tmp_path, monkeypatch):
    for importer in ("outer_metric", "inner_metric"):
        stand_in = late_names._ModuleForOne("slow_library", importer)
        monkeypatch.setitem(sys.modules, "slow_library", stand_in)
    assert type(stand_in.load()) is type(sys)
