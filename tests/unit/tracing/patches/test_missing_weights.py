"""Weights that a script downloads by itself, and that are not on this machine."""

from __future__ import annotations

import copy
import io
import os
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.patches import missing_weights
from cotenant.tracing.patches.missing_weights import MissingStateDict


@pytest.fixture
def warned(monkeypatch):
    monkeypatch.setattr(MissingStateDict, "files", set())
    monkeypatch.setattr(MissingStateDict, "made", False)
    return []


def offline(*args, **kwargs):
    raise OSError("no network")


def urlretrieve(*args, **kwargs):
    offline()


@pytest.mark.parametrize(
    ("function", "args", "named"),
    [
        pytest.param(urlretrieve, ("https://a.org/b.pth", "b.pth"), {}, id="by position"),
        pytest.param(offline, ("https://a.org/c.pth",), {"output": "b.pth"}, id="to a name"),
        pytest.param(offline, (), {"id": "c.pth", "output": "b.pth"}, id="of an identity"),
    ],
)
def test_a_download_of_weights_is_the_file_that_it_was_to_write(warned, function, args, named):
    fetch = missing_weights._with_missing_file(SimpleNamespace(warn=warned.append), function)
    path = os.path.realpath("b.pth")
    assert fetch(*args, **named) == ((path, None) if function is urlretrieve else path)
    assert MissingStateDict.files == {path}
    assert warned == ["the weights `b.pth` are not on this machine: the model keeps its initial ones"]


@pytest.mark.parametrize("named", [{"output": "b.csv"}, {}])
def test_a_download_of_something_else_still_fails(warned, named):
    fetch = missing_weights._with_missing_file(SimpleNamespace(warn=warned.append), offline)
    with pytest.raises(OSError, match="no network"):
        fetch("https://a.org/b.pth", **named)
    assert not MissingStateDict.files


class Absent(io.BytesIO):
    """A file of a library that looks for its content when it is read."""


@pytest.mark.parametrize(("file", "is_known"), [("b.pth", True), ("c.pth", False), (Absent(), False)])
def test_only_what_was_to_be_downloaded_loads(warned, file, is_known):
    def absent(*args, **kwargs):
        raise FileNotFoundError

    MissingStateDict.files.add(os.path.realpath("b.pth"))
    load = missing_weights._loading_downloads(absent)
    if is_known:
        assert isinstance(load(file), MissingStateDict)
    else:
        with pytest.raises(FileNotFoundError):
            load(file)


def test_a_whole_model_that_is_missing_is_named():
    loaded = MissingStateDict.at("models/whole.pth")
    with pytest.raises(AttributeError, match=r"`models/whole.pth` is not on this machine.*reads `modules`") as raised:
        loaded["model"].modules()
    assert missing_weights.missing_part(raised.value) == "`models/whole.pth`"
    assert not hasattr(loaded, "module")
    assert copy.deepcopy(loaded) == {}
