"""Plug-ins by name: the built-in ones without any search, others by the entry points of installed distributions."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cotenant.core.errors import PluginError, UnknownName
from cotenant.core.registry import Registry
from distributions import a_distribution

GROUP = "cotenant.tests_of_the_registry"


@pytest.fixture
def registry():
    return Registry[object]("color", GROUP, {"red": 1, "dumps": "json:dumps"})


def installed(tmp_path, monkeypatch, targets, source="green = 'GREEN'\nred = 'not this one'"):
    a_distribution(tmp_path, module="acme_colors", source=source, entry_points={GROUP: targets})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "acme_colors", raising=False)


def test_a_built_in_plug_in_is_an_object_or_a_path_to_one(registry):
    assert registry.get("red") == 1
    assert registry.get("dumps") is json.dumps
    assert registry.builtin_names == ("red", "dumps")


def test_a_distribution_adds_a_plug_in(registry, tmp_path, monkeypatch):
    assert "green" not in registry
    installed(tmp_path, monkeypatch, {"green": "acme_colors:green"})
    assert "green" in registry
    assert registry.get("green") == "GREEN"
    assert registry.names() == tuple(registry) == ("red", "dumps", "green")
    assert registry.provider("green") == "acme-plugins 1.0"
    assert registry.provider("red") == "cotenant"


def test_a_distribution_cannot_replace_a_built_in_plug_in(registry, tmp_path, monkeypatch):
    installed(tmp_path, monkeypatch, {"red": "acme_colors:red"})
    assert registry.get("red") == 1
    assert registry.names() == ("red", "dumps")


def test_an_unknown_name_is_refused_with_the_known_ones(registry, tmp_path, monkeypatch):
    installed(tmp_path, monkeypatch, {"green": "acme_colors:green"})
    with pytest.raises(UnknownName, match=r"no color named `gren` \(known: dumps, green, red\)") as failure:
        registry.get("gren")
    assert failure.value.hint == "did you mean `green`?"
    assert 3 not in registry


@pytest.mark.parametrize(
    ("target", "source", "says"),
    [
        pytest.param("acme_colors:absent", "", "has no attribute 'absent'", id="no such attribute"),
        pytest.param("acme_colors:green", "import no_such_module_xyz", "no_such_module_xyz", id="import fails"),
        pytest.param("acme_colors:green", "raise RuntimeError('bad luck')", "bad luck", id="module raises"),
    ],
)
def test_a_plug_in_that_cannot_be_loaded_names_its_distribution(registry, tmp_path, monkeypatch, target, source, says):
    installed(tmp_path, monkeypatch, {"green": target}, source=source)
    assert "green" in registry.names(), "that it is broken is no reason not to list it"
    with pytest.raises(PluginError, match=r"color `green` of acme-plugins 1\.0 cannot be loaded") as failure:
        registry.get("green")
    assert says in failure.value.message


def test_built_in_names_need_no_search_of_installed_distributions():
    code = (
        "import sys; from cotenant.core.registry import Registry;"
        "registry = Registry('color', 'cotenant.none', {'red': 'json:dumps'});"
        "registry.get('red'); 'red' in registry; registry.builtin_names;"
        "sys.exit('importlib.metadata' in sys.modules)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-S", "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, check=False
        ).returncode
        == 0
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [("h100-80gb", "did you mean `H100-80GB`?"), ("H200XL", "did you mean `H200-141GB`?"), ("MI300X", None)],
)
def test_an_unknown_name_suggests_the_nearest(name, hint):
    assert UnknownName("GPU", name, ["H100-80GB", "H200-141GB"]).hint == hint
