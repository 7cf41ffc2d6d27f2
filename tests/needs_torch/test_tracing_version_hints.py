"""Hints about scripts that are for another version of a package, or of Python."""

from __future__ import annotations

import importlib.util
import platform
import sys

import pytest

pytest.importorskip("torch", reason="traces scripts")

import torch

from cotenant.core.errors import TraceError
from traced_scripts import traced

PYTHON = f"Python {'.'.join(platform.python_version_tuple()[:2])} runs the script"
TORCH = f"torch {torch.__version__} is installed: is the script for another version?"


def hint_of(tmp_path, source, **options):
    with pytest.raises(TraceError) as caught:
        traced(tmp_path, source, **options)
    return caught.value.hint


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        pytest.param(
            "import torch\nfrom torch import optim\nmodel = torch.nn.Linear(2, 2)\n"
            "optim.lr_scheduler.StepLR(optim.SGD(model.parameters(), 0.1), 3, verbosity=True)",
            TORCH, id="an argument that went, of an attribute of a module",
        ),
        pytest.param("import yaml\nyaml.load('a: 1')", "yaml", id="an argument that is required now"),
        pytest.param("import torch\nloss = torch.ones(())\nprint(loss[0])", TORCH, id="behavior, by its words"),
        pytest.param(
            "import torch\nx = torch.ones(2, device='cuda')\nx.masked_fill(x.byte(), 0)", TORCH, id="a mask of bytes"
        ),
        pytest.param(
            "import torch\niter(torch.utils.data.DataLoader([1])).next()", TORCH, id="a method of a loader's iterator"
        ),
        pytest.param(
            "import torch\ntorch.optim.Adam(torch.nn.Linear(2, 2).parameters(), betas=(0, 0.99))",
            TORCH, id="a value that the constructor does not take",
        ),
        pytest.param("import collections\ncollections.Iterable", PYTHON, id="a name of the standard library"),
        pytest.param("from collections import Iterable", PYTHON, id="an import from the standard library"),
        pytest.param("import cPickle", PYTHON, id="a module of Python 2"),
        pytest.param(
            "raise RuntimeError('Found no NVIDIA driver on your system.')", "is not modeled", id="an operator's kernel"
        ),
        pytest.param("def step(lr): pass\nstep()", "--show-output", id="the script's own function"),
        pytest.param(
            "import torch\nclass Net(torch.nn.Module):\n    def __init__(self, width): ...\nNet()",
            "--show-output", id="the constructor of the script's own class",
        ),
        pytest.param(
            "from dataclasses import dataclass\nfrom torch.utils.data import Sampler\n@dataclass\n"
            "class Own(Sampler):\n    size: int = 1\nOwn(length=1)",
            TORCH, id="a data class of the script with a base of a package",
        ),
    ],
)  # fmt: skip
def test_the_hint_names_the_version_that_is_installed(tmp_path, source, hint):
    if hint == "yaml":
        pytest.importorskip("yaml", reason="calls it")
        hint = "PyYAML"
    assert hint in hint_of(tmp_path, source + "\n")


def test_a_loader_without_samples_is_about_data(tmp_path):
    source = "from torch.utils.data import DataLoader\nDataLoader([], batch_size=2, shuffle=True)\n"
    assert "--synthetic-data" in hint_of(tmp_path, source, null_packages=("tensorflow",))


def test_a_module_beside_the_importing_file_is_what_python_2_imports(tmp_path):
    (tmp_path / "reader").mkdir()
    (tmp_path / "reader" / "__init__.py").write_text("from shapes import SIZE\n")
    (tmp_path / "reader" / "shapes.py").write_text("SIZE = 3\n")
    assert "where Python 2 looked for it" in hint_of(tmp_path, "import reader\n")


def test_the_import_that_failed_first_is_named(tmp_path):
    source = "try:\n    import fast_kernels_cuda\nexcept ImportError:\n    from .kernels import fast_kernels_cuda\n"
    assert "`fast_kernels_cuda`, which is missing" in hint_of(tmp_path, source, null_packages=("tensorflow",))


def test_a_package_without_the_module_that_its_build_makes_is_not_said_to_have_it(tmp_path, monkeypatch):
    (tmp_path / "encoder").mkdir()
    (tmp_path / "encoder" / "__init__.py").write_text("import encoder.version_of_build\n")
    monkeypatch.chdir(tmp_path)
    assert "`encoder` is there without it" in hint_of(tmp_path, "import encoder\n")
    assert "encoder" not in sys.modules


def test_a_folder_that_is_not_the_package_which_is_built_from_it(tmp_path):
    (tmp_path / "spotlight" / "spotlight").mkdir(parents=True)
    (tmp_path / "spotlight" / "setup.py").write_text("")
    hint = hint_of(tmp_path, "from spotlight import import_class\n")
    assert "is not the package, which is built from it" in hint


def test_what_a_script_computes_with_is_to_be_installed(tmp_path):
    source = """
import torch
from tensorflow.examples.tutorials.mnist import input_data
images = input_data.read_data_sets("MNIST", one_hot=True).train.images
torch.nn.Linear(images.shape[1], 8)
"""
    if importlib.util.find_spec("tensorflow") is None:
        assert "`tensorflow`: not installed, and the script computes with" in hint_of(
            tmp_path, source, null_packages=("tensorflow",)
        )


def test_batches_without_end_are_not_an_error_of_the_script(tmp_path):
    source = """
import torch
from torch.utils.data import DataLoader

class Endless:
    def __init__(self, loader):
        self.batches = iter(loader)

    def __iter__(self):
        while True:
            yield next(self.batches)

model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = iter(Endless(DataLoader(torch.randn(4000, 8), batch_size=4)))
for _ in range(100):
    model(next(batches).cuda()).sum().backward()
    optimizer.step()
"""
    trace = traced(tmp_path, source)
    assert trace.warnings == ("not traced after training: the script reads batches without end (train.py, line 17)",)
    assert not trace.partial
