"""What scripts do in environments of other versions, retyped small: each once had no answer."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import textwrap
import types

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

import torch
from torch.utils import _pytree

from cotenant.tracing.inductor.plain_torch import read_attributes
from cotenant.tracing.patches import kernel_modules
from cotenant.tracing.process import package_hints
from cotenant.tracing.training import call_signature
from traced_scripts import TRAINING, failing, traced


def test_attributes_of_a_module_that_this_torch_does_not_have_are_left_out(monkeypatch):
    here = [name for _, name, _ in read_attributes()]
    monkeypatch.setitem(sys.modules, "torch.nn.attention.flex_attention", None)
    assert [name for _, name, _ in read_attributes()] == [name for name in here if name != "flex_attention"]


class OldSpecification:
    """As that of `_pytree` in torch 2.4: a list of children, equality, and so no hash."""

    __hash__ = None

    def __init__(self, children):
        self.children = children

    def __eq__(self, other):
        return self.children == other.children

    def __repr__(self):
        return f"OldSpecification({self.children!r})"


def test_a_signature_has_a_hash_where_the_specification_of_inputs_has_none(monkeypatch):
    monkeypatch.setattr(call_signature, "FakeTensor", object)
    monkeypatch.setattr(_pytree, "tree_flatten", lambda tree: (list(tree[0]), OldSpecification(list(map(len, tree)))))
    module = torch.nn.Identity()
    one, two = (call_signature.signature(module, (1, 1), named) for named in ({}, {"scale": 1}))
    assert len({one, two}) == 2
    assert hash(one) == hash(call_signature.signature(module, (1, 1), {}))


@pytest.mark.parametrize("device", ["torch.device('cuda')", "torch.device('cuda', 0)", "'cuda:0'", "0"])
def test_ddp_takes_a_device_as_pytorch_does(tmp_path, device):
    source = f"""
    torch.distributed.init_process_group("nccl", rank=0, world_size=2, store=torch.distributed.HashStore())
    wrapped = torch.nn.parallel.DistributedDataParallel(model, device_ids=[{device}])
    assert wrapped.device_ids == [0], wrapped.device_ids
    for _ in range(4):
        wrapped(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    """
    traced(tmp_path, TRAINING + textwrap.dedent(source))


def test_ddp_answers_a_trainer_that_ends_with_an_error(tmp_path):
    # Source of the question: lightning/pytorch/strategies/ddp.py, `DDPStrategy.teardown`.
    source = """
    torch.distributed.init_process_group("nccl", rank=0, world_size=2, store=torch.distributed.HashStore())
    wrapped = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])
    try:
        raise ValueError("no data")
    finally:
        if not wrapped.static_graph and wrapped._get_ddp_logging_data().get("can_set_static_graph"):
            print("set it")
    """
    with failing("raised", "no data"):
        traced(tmp_path, TRAINING + textwrap.dedent(source))


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        pytest.param("You requested gpu: [0, 1]\n But your machine only has: [0]", "`--gpus 2`", id="two"),
        pytest.param("You requested gpu: [3]\n But your machine only has: [0]", "`--gpus 4`", id="the fourth"),
        pytest.param("Invalid device id", "`--gpus N`", id="a device"),
        pytest.param("CUDA error: invalid device ordinal", "`--gpus N`", id="an ordinal"),
        pytest.param("You requested a raise", None, id="another"),
    ],
)
def test_a_trainer_that_wants_more_gpus_is_told_how_to_get_them(words, hint):
    found = package_hints.hint_for(RuntimeError(words))
    assert found is None if hint is None else hint in found


SOUND = """
same = (model.weight == model.weight.clone()).all()
assert same, "a copy differs"
assert (model.weight == model.weight.clone()).all(), (
    "another copy differs"
)
assert not (model.weight != model.weight.clone()).any()
train()
"""


def test_an_assertion_of_unknown_values_holds(tmp_path):
    traced(tmp_path, TRAINING + SOUND)


@pytest.mark.parametrize("assertion", ["assert same and len([])", "assert not (same or len([1]))", "assert len([])"])
def test_an_assertion_of_known_values_fails(tmp_path, assertion):
    with failing("raised", "AssertionError"):
        traced(tmp_path, TRAINING + SOUND.replace("assert same", assertion))


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="the data set is torchvision's")
def test_items_of_a_subclass_are_read_from_synthetic_folders(tmp_path):
    """As the crops of SwAV."""
    source = """
    from torchvision import datasets, transforms
    class Crops(datasets.ImageFolder):
        def __getitem__(self, index):
            path, _ = self.samples[index]
            assert path.startswith("missing/train/"), path
            return [transforms.functional.to_tensor(self.loader(path)) for _ in range(2)]
    crops = Crops("missing/train")[0]
    assert [tuple(crop.shape) for crop in crops] == [(3, 8, 16)] * 2
    train()
    """
    traced(tmp_path, TRAINING + textwrap.dedent(source), synthetic_data=["3x8x16:uint8:10"])


def gym_error(module, name, words):
    return type(name, (Exception,), {"__module__": module})(words)


@pytest.mark.parametrize(
    ("name", "words", "hint"),
    [
        ("NameNotFound", "Environment `MiniGrid-DoorKey-5x5` doesn't exist.", "`minigrid` has such environments"),
        ("NameNotFound", "Environment MsPacmanNoFrameskip doesn't exist.", "`ale-py` has such environments"),
        ("NamespaceNotFound", "Namespace ALE not found. Have you installed it?", "`ale-py` has such environments"),
        ("NameNotFound", "Environment `Mine` doesn't exist.", "a package of the job has `Mine`"),
        ("DeprecatedEnv", "Environment version v0 for `Pendulum` is deprecated.", "is the script for another version"),
        ("Error", "something", None),
    ],
)
@pytest.mark.parametrize("library", ["gym", "gymnasium"])
def test_the_package_of_an_environment_is_named(library, name, words, hint):
    found = package_hints.hint_for(gym_error(f"{library}.error", name, words))
    assert found is None if hint is None else hint in found


def test_the_package_of_an_environment_may_be_there_and_not_imported(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "9.1")
    found = package_hints.hint_for(
        gym_error("gymnasium.error", "NameNotFound", "Environment `MiniGrid-X` doesn't exist.")
    )
    assert "`minigrid` is installed" in found
    assert "`import minigrid` first" in found


def test_a_module_that_its_package_lacks_may_have_to_be_built(tmp_path, monkeypatch):
    package = types.ModuleType("sampler_package")
    package.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "sampler_package", package)
    error = ModuleNotFoundError("No module named 'sampler_package.fast'", name="sampler_package.fast")
    assert "is there without it" in package_hints.hint_for(error)
    (tmp_path / "fast.pyx").write_text("")
    assert f"`{tmp_path / 'fast.pyx'}` is not compiled" in package_hints.hint_for(error)


def test_a_library_that_says_what_is_not_installed_is_understood():
    words = "FlashAttention2 has been toggled on, but the package flash_attn seems to be not installed."
    assert "FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE" in kernel_modules.hint_for(ImportError(words))
    assert kernel_modules.hint_for(ImportError("cannot import name 'flash_attn_2'")) is None


@pytest.mark.parametrize(
    ("call", "is_of_torch"),
    [
        pytest.param("torch.optim.SGD(model.parameters(), lr=0.1, pace=2)", True, id="a class of a package"),
        pytest.param("class Own(torch.optim.SGD): pass\nOwn(model.parameters(), pace=2)", True, id="a subclass of it"),
        pytest.param("torch.load('x', pace=2)", False, id="any keywords"),
        pytest.param("def step(lr): pass\nstep(pace=2)", False, id="a function of the script"),
    ],
)
def test_an_argument_that_a_package_does_not_know_is_of_another_version(tmp_path, call, is_of_torch):
    source = "import torch\nfrom torch import optim\nSGD = optim.SGD\nmodel = torch.nn.Linear(2, 2)\n"
    with failing("raised") as caught:
        traced(tmp_path, f"{source}{call}\n")
    hint = f"torch {torch.__version__} is installed: is the script for another version?"
    assert (hint in caught.value.hint) == is_of_torch


def test_the_folder_that_a_script_runs_in_is_no_package_that_it_lacks(tmp_path):
    (tmp_path / "kerax").mkdir()
    (tmp_path / "kerax" / "other.py").touch()
    with failing("import", "No module named 'kerax'") as caught:
        traced(tmp_path / "kerax", "import kerax.layers")
    assert "install it there" in caught.value.hint


def test_the_frame_around_a_message_is_not_told(tmp_path):
    with failing("raised", "LookupError: Resource punkt not found"):
        traced(tmp_path, "raise LookupError('\\n' + 9 * '*' + '\\n  Resource punkt not found.\\n' + 9 * '*')")
