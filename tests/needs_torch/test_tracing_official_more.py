"""Official example scripts: reinforcement learning, and missing data and weights of timm."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from traced_scripts import allocations, failing, traced

torch = pytest.importorskip("torch", reason="tracing needs torch")

ONE_STATE = """
import torch
from torch import distributions
policy = torch.nn.Linear(4, {width}).cuda()
optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
for _ in range(3):
    scores = policy(torch.zeros(4).cuda())
    chosen = distributions.{made}
    (-chosen.log_prob(chosen.sample())).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
try: distributions.Categorical(torch.tensor([0.5, -0.5]).cuda())
except ValueError: print("known values are checked")
else: raise SystemExit("a wrong value passed")
"""


@pytest.mark.parametrize(
    ("made", "width"),
    [
        pytest.param("Categorical(scores.softmax(-1))", 2, id="shares that add up"),
        pytest.param("OneHotCategorical(scores.softmax(-1))", 3, id="of one kind"),
    ],
)
def test_policies_for_a_single_state_have_valid_probabilities(tmp_path, made, width):
    trace = traced(tmp_path, ONE_STATE.format(made=made, width=width))
    assert not trace.partial
    assert trace.warnings == ()
    assert 4 * 4 * width in allocations(trace, category="parameter")


READERS = """
import os
from PIL import Image

def create_reader(name, root=None, split="train"):
    assert os.path.exists(root)

class ImageDataset:
    def __init__(self, root, reader=""):
        self.reader = create_reader(reader, root=root)

    def __getitem__(self, index):
        image, target = self.reader[index]
        return Image.open(image).convert("RGB"), target

    def __len__(self):
        return len(self.reader)
"""
FOLDER = """
import numpy
import torch
from timm.data.dataset import ImageDataset
data = ImageDataset("gone")
assert len(data) > 1000 and [data[index][1] for index in (0, 1, 5)] == [0, 1, 0]
assert len(data.reader.class_to_idx) == 5 and data.reader.filename(7) == "2/7.png"

def collate(batch):
    return torch.stack([torch.from_numpy(numpy.array(image)).float() for image, _ in batch])

model = torch.nn.LazyLinear(3).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for images in torch.utils.data.DataLoader(data, batch_size=4, collate_fn=collate):
    model(images.flatten(1).cuda()).sum().backward()
    optimizer.step()
"""


def _with_readers(folder: Path) -> None:
    package = folder / "timm" / "data"
    package.mkdir(parents=True)
    for path in (package.parent / "__init__.py", package / "__init__.py"):
        path.touch()
    (package / "dataset.py").write_text(READERS)


def test_image_folders_of_timm_are_synthesized(tmp_path):
    pytest.importorskip("PIL", reason="needs Pillow")
    _with_readers(tmp_path)
    trace = traced(tmp_path, FOLDER, synthetic_data=["3x8x9:uint8:5"])
    assert 4 * 4 * 3 * 8 * 9 in allocations(trace, category="input")
    assert trace.warnings[0] == "`gone` is not on this machine; replaced by synthetic data: 3x8x9:uint8:5"


def test_a_failed_assertion_without_a_message_is_quoted(tmp_path):
    _with_readers(tmp_path)
    with failing("raised", "AssertionError: assert os.path.exists(root)") as caught:
        traced(tmp_path, "from timm.data.dataset import ImageDataset\nImageDataset('gone')\n")
    assert "add `--synthetic-data " in caught.value.hint


BUILDER = """
def load_pretrained(model, pretrained_cfg=None, num_classes=1000, strict=True):
    raise FileNotFoundError("no entry")

def build(model, **cfg):
    load_pretrained(model, pretrained_cfg=cfg, num_classes=2)
    return model
"""
PRETRAINED = """
import torch
from timm.models._builder import build
model = build(torch.nn.Linear(8, 2), hf_hub_id="timm/small").cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.zeros(4, 8).cuda()).sum().backward()
    optimizer.step()
"""


def test_missing_timm_weights_are_replaced_by_initial_ones(tmp_path):
    package = tmp_path / "timm" / "models"
    package.mkdir(parents=True)
    for path in (package.parent / "__init__.py", package / "__init__.py"):
        path.touch()
    (package / "_builder.py").write_text(BUILDER)
    trace = traced(tmp_path, PRETRAINED)
    assert 4 * 8 * 2 in allocations(trace, category="parameter")
    assert trace.warnings == ("the weights `timm/small` are not on this machine: the model keeps its initial ones",)


MEASURED = """
import evaluate
import torch
metric = evaluate.load("glue", "mrpc")
model = torch.nn.Linear(8, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    metric.add_batch(predictions=[1], references=[0])
    found = metric.compute()
    assert found["accuracy"] == found["f1"] == found["glue"] == 0
    model(torch.zeros(4, 8).cuda()).sum().backward()
    optimizer.step()
"""


@pytest.mark.skipif(importlib.util.find_spec("evaluate") is not None, reason="the library itself would be found")
def test_a_missing_metric_returns_any_requested_result(tmp_path):
    package = tmp_path / "evaluate"
    package.mkdir()
    (package / "__init__.py").write_text("from evaluate.loading import load\n")
    (package / "loading.py").write_text("def load(path, *args):\n    raise FileNotFoundError(path)\n")
    trace = traced(tmp_path, MEASURED)
    assert trace.warnings == ("the metric `glue` is not on this machine: its result is 0",)


SPLIT = """
import torch
from torch.utils.data import DataLoader, random_split
from torchvision import datasets, transforms
data = datasets.MNIST("gone", train=True, download=True, transform=transforms.ToTensor())
data, held = random_split(data, [55000, 5000])
test = datasets.{kind}("gone", train=False)
assert len(test) == len(test.data) == len(test.targets) == 10_000
assert len(datasets.CIFAR10("gone")) == 50_000
model = torch.nn.LazyLinear(3).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, _ in DataLoader(data, batch_size=4):
    model(x.flatten(1).cuda()).sum().backward()
    optimizer.step()
"""


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="needs torchvision")
@pytest.mark.parametrize("kind", ["KMNIST", "CIFAR100"])
def test_synthetic_datasets_have_the_published_number_of_samples(tmp_path, kind):
    trace = traced(tmp_path, SPLIT.format(kind=kind), synthetic_data=["1x28x28:uint8:10"])
    assert 4 * 4 * 28 * 28 in allocations(trace, category="input")
