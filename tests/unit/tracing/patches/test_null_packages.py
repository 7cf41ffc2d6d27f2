"""Null objects: what a script may do with one, and what raises."""

import copy
import operator
import os

import pytest

from cotenant.tracing.patches.null_packages import _KNOWN, Null, replaceable


@pytest.mark.parametrize(
    ("error", "package"),
    [
        pytest.param(ModuleNotFoundError("", name="visdom"), "visdom", id="a tracker"),
        pytest.param(ModuleNotFoundError("", name="pyvirtualdisplay"), "pyvirtualdisplay", id="a display"),
        pytest.param(ModuleNotFoundError("", name="numpy"), None, id="a package that computes"),
        pytest.param(ModuleNotFoundError("", name="wandb.apis"), None, id="a part that the installed version lacks"),
        pytest.param(ImportError("", name="visdom"), None, id="a name that the installed version lacks"),
        pytest.param(ModuleNotFoundError(""), None, id="no name"),
    ],
)
def test_what_a_null_object_can_replace(error, package):
    assert replaceable(error) == package


def test_a_null_object_takes_calls_attributes_items_and_contexts():
    run = Null("wandb").init(project="p", config={"lr": 0.1})
    run.name = "mine"
    run.summary["best"] = 3
    with run.section("train") as section:
        section.log({"loss": 1.0})
    assert isinstance(run.summary["best"], Null)
    assert run.name is not None
    assert bool(run)
    assert f"{run.url:>10}{run}" == str(run) == ""


def test_secrets_of_notebooks_are_texts_which_the_environment_takes(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", Null("google.colab").userdata.get("HF_TOKEN"))
    monkeypatch.setenv("WANDB_KEY", Null("kaggle_secrets").UserSecretsClient().get_secret("wandb"))
    assert os.environ["HF_TOKEN"]
    assert os.environ["WANDB_KEY"]
    assert isinstance(Null("wandb.config").get("HF_TOKEN"), Null)


def test_matplotlib_takes_a_null_ipython_for_one_that_leaves_it_the_work():
    assert _KNOWN["IPython"]["version_info"][:2] >= (8, 24)


def test_colors_vanish_in_texts():
    red = Null("colorama.Fore.RED")
    assert red + "late" == "late" + red == "late"


def test_a_decorated_function_or_class_stays():
    def step():
        return 7

    class Callback: ...

    monitor = Null("aim.monitor")
    assert monitor(step) is step
    assert monitor(Callback) is Callback
    assert isinstance(monitor(step, every=2), Null)


@pytest.mark.parametrize(
    "use",
    [
        float, int, len, iter, list, range, lambda value: value + 1, lambda value: 1 + value,
        lambda value: value * 2, lambda value: 1 / value, lambda value: value - 1, lambda value: value >= 0,
        lambda value: value < 3, lambda value: 3 in value,
    ],
)  # fmt: skip
def test_a_value_that_a_script_computes_with_raises(use):
    with pytest.raises(ModuleNotFoundError, match=r"`wandb` is not installed, and the value of `wandb.config.lr`"):
        use(Null("wandb").config.lr)


def test_numpy_finds_no_array_in_it():
    numpy = pytest.importorskip("numpy")
    with pytest.raises(ModuleNotFoundError, match="`visdom`"):
        numpy.asarray(Null("visdom").line())


def test_protocols_by_special_names_are_not_there():
    value = Null("wandb")
    assert copy.copy(value) is not None
    with pytest.raises(AttributeError):
        operator.attrgetter("__wrapped__")(value)
