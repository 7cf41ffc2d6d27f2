"""What transformers exports, found as it does."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.patches import import_structures


@pytest.mark.parametrize(
    ("content", "part"),
    [
        pytest.param("import a\n__all__ = ['A']\n", "__all__ = ['A']\n", id="behind other lines"),
        pytest.param("__all__ = ['A']", "__all__ = ['A']", id="the only line"),
        pytest.param("__all__ = []\n__all__ = ['A']\n", "__all__ = ['A']\n", id="the last of two"),
        pytest.param("__all__ = ['A']\nx = __all__\n", "__all__ = ['A']\nx = __all__\n", id="named later in a line"),
        pytest.param("x\r__all__ = ['A']", "__all__ = ['A']", id="after another end of a line"),
        pytest.param("x = __all__\n", "", id="no line of its own"),
        pytest.param("import a\n", "", id="none"),
    ],
)
def test_only_what_follows_the_last_exports_is_looked_at(content, part):
    assert import_structures._from_last_exports(lambda text: text)(content) == part


def test_all_folders_are_remembered():
    read = []

    @functools.lru_cache(maxsize=1)
    def structure(path):
        read.append(path)
        return {path: 1}

    remembering = import_structures._remembering_all(structure)
    assert [remembering(path) for path in "abab"] == [{path: 1} for path in "abab"]
    assert read == ["a", "b"]
