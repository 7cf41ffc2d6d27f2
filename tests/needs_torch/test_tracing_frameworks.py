"""Training frameworks: their tensor classes, loaders and optimizers, and layers that are unfrozen later."""

import textwrap

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from traced_scripts import by_category, traced

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 8)).cuda()
"""
ONE_STEP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(4, 64, device="cuda")).sum().backward()
optimizer.step()
"""
BODY, TOP = 4 * (64 * 32 + 32), 4 * (32 * 8 + 8)


def test_values_from_the_data_are_known_and_computed_ones_are_not(tmp_path):
    checks = """
boxes = torch.tensor([[0.0, 3.0], [0.0, 4.0], [2.0, 5.0]]).cuda()
_, counts = boxes[:, 0].unique(return_counts=True)
assert counts.max() == 2 and (boxes[:, 0] == 0).nonzero().shape == (2, 1)
share = torch.as_tensor([0.25, 0.5], device="cuda")
assert not share[0] > share[1] and share[0].item() == 0.25
assert torch.allclose(share, share * 1.0) and not torch.allclose(share, torch.rand(2, device="cuda"))
total = torch.zeros((), device="cuda")
total += boxes.sum()
assert total.item() == 14.0
total += model[1].bias.sum()  # what is learned is not followed, nor what is drawn
assert total.item() == 1.0
drawn = torch.zeros(6, device="cuda").normal_()
assert (drawn > 100).nonzero().shape == (6, 1) and (torch.randn(6, device="cuda") > 100).nonzero().shape == (6, 1)
norm = nn.BatchNorm1d(4).cuda()
norm(boxes.new_ones(8, 4))
assert norm.running_mean.sum().item() == 1.0  # changed, though its operator does not say so
"""
    assert not traced(tmp_path, HEAD + checks + ONE_STEP).partial


def test_labels_of_pixels_that_are_floats_are_as_many_as_there_are(tmp_path):
    """As a discriminative loss of instance segmentation loops over the instances of an image."""
    checks = """
labels = (torch.arange(2 * 256 * 512) // (256 * 512 // 4) % 4).view(2, 256, 512).float().cuda()
assert [len(torch.unique(labels[index].reshape(-1))) for index in range(2)] == [4, 4]
assert len(torch.unique(torch.rand(300, 300).cuda())) == 300 * 300  # no labels
labels.mul_(torch.rand(512, device="cuda"))
assert len(torch.unique(labels)) == labels.numel()  # written to
"""
    assert not traced(tmp_path, HEAD + checks + ONE_STEP).partial


def test_what_is_selected_by_an_unknown_mask_is_known_where_its_source_was(tmp_path):
    """As torchvision's detectors select labels: each class is seen once, and has its own boxes."""
    checks = """
scores = torch.rand(50, 9, device="cuda")
labels = torch.arange(9, device="cuda").view(1, -1).expand_as(scores)[:, 1:].reshape(-1)
kept = labels[torch.where(scores[:, 1:].reshape(-1) > 0.5)[0]]
kept = kept[kept > torch.rand_like(kept, dtype=torch.float32) - 1]
assert kept.shape == (400,)
assert [len(torch.where(kept == label)[0]) for label in torch.unique(kept)] == [50] * 8
rows, columns = (torch.rand(3, 2, device="cuda") > 0.5).nonzero(as_tuple=True)
assert rows.tolist() == [0, 0, 1, 1, 2, 2] and columns.tolist() == [0, 1] * 3
"""
    trace = traced(tmp_path, HEAD + checks + ONE_STEP)
    assert not trace.partial
    assert [warning for warning in trace.warnings if "mask" in warning] == []


def test_tensor_subclasses_of_a_library_retain_their_class_on_the_gpu(tmp_path):
    checks = """
class Image(torch.Tensor):
    def __new__(cls, x, **kwargs):
        return torch.as_tensor(x).as_subclass(cls)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(out, Image) and isinstance(args[0], Image):
            out.__dict__ = args[0].__dict__
        return out

    def new_empty(self, *size, **kwargs):
        return self.as_subclass(torch.Tensor).new_empty(*size, **kwargs).as_subclass(type(self))

class Mask(Image):
    def area(self):
        return self.sum()

image, mask = Image(torch.rand(2, 8)), Mask(torch.ones(2, dtype=torch.int64))
image.place = mask.place = "here"
image, mask = image.to("cuda"), mask.cuda()
assert isinstance(image, Image) and not isinstance(image, Mask) and isinstance(mask, Mask)
assert image.is_cuda and image.place == "here" and mask.area() == 2
more = image * 2 + 1
assert isinstance(more, Image) and more.place == "here" and isinstance(more.argmax(1), Image)
assert isinstance(nn.functional.cross_entropy(more, mask), Image)
plain = more.as_subclass(torch.Tensor)
plain.__dict__ = mask.__dict__
assert not isinstance(plain, Image) and (plain + 1).is_cuda and plain.place == "here"
back = more.cpu()
assert type(back) is Image and back.numpy().shape == (2, 8)
assert type(torch.ones(2).as_subclass(type(plain + 1))) is torch.Tensor  # the class of a tensor that was on the GPU
assert type(Image(torch.ones(2)).as_subclass(type(more))) is Image

class Scores(torch.Tensor):  # `Tensor.__new__` makes it
    pass

weight = torch.ones(3, requires_grad=True)
for made in (Scores(weight), Scores([1.0, 2.0, 3.0]), Scores(3)):
    assert type(made) is Scores and made.device.type == "cpu" and made.shape == (3,)
scores = Scores(torch.ones(3).cuda())
assert isinstance(scores, Scores) and scores.is_cuda and scores.shape == (3,)
assert Scores(weight).untyped_storage().data_ptr() == weight.untyped_storage().data_ptr()
Scores(weight).sum().backward()
assert weight.grad.tolist() == [1.0] * 3
stored = Scores(torch.zeros(3))
stored[torch.tensor([0, 2]).cuda()] = torch.ones(2)  # PyTorch copies the indices to the CPU
assert type(stored) is Scores and not stored.is_cuda
assert type(torch.Tensor([1.0])) is torch.Tensor
import torch._dynamo.polyfills.loader  # it looks at the signature of `Tensor.__new__`
"""
    assert not traced(tmp_path, HEAD + checks + ONE_STEP).partial


ENDLESS = """
class Again:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)

class Endless(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", Again(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)

data = TensorDataset(torch.randn(400, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train, test = Endless(data, batch_size=4), DataLoader(data, batch_size=100)
for epoch in range(1000):
    for (x,) in train:
        model(x.cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    for (x,) in test:
        model(x.cuda())
"""


def test_a_loader_with_one_iterator_for_all_epochs_ends_its_epoch(tmp_path):
    trace = traced(tmp_path, HEAD + ENDLESS)
    assert not trace.warnings
    assert not trace.partial
    assert trace.header.steps == 3
    assert any(event.bytes == 100 * 64 * 4 for event in trace.events if event.action == "alloc")


THAWS = """
data = TensorDataset(torch.randn(40, 64))
optimizer = torch.optim.Adam(model.parameters())
model[0].requires_grad_(False)
for epoch in range(1000):
    if epoch == 2:
        model[0].requires_grad_(True)
    for (x,) in DataLoader(data, batch_size=4):
        model(x.cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_layers_unfrozen_in_the_next_epoch_are_traced(tmp_path):
    trace = traced(tmp_path, HEAD + THAWS.replace("epoch == 2", "epoch == 1"))
    assert by_category(trace)["optimizer state"] == 2 * (BODY + TOP)
    assert trace.header.steps == 6


def test_permanently_frozen_layers_add_no_steps(tmp_path):
    trace = traced(tmp_path, HEAD + THAWS.replace("epoch == 2", "False"))
    assert by_category(trace)["optimizer state"] == 2 * TOP
    assert trace.header.steps == 3


FASTAI_OPTIMIZER = """
class Optimizer:
    def __init__(self, params):
        self.params, self.state = list(params), {}

    @property
    def param_groups(self):
        return [{"params": self.params}]

    def step(self, closure=None):
        for p in self.params:
            average = self.state.setdefault(p, {"average": p.new_zeros(p.shape)})["average"]
            average.add_(p.grad)
"""
FASTAI_LOADER = """
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

_loaders = (_MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter)

class Source:
    num_workers = 2

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)

class DataLoader:
    def __init__(self, batches):
        self.fake_l = Source(batches)

    def __iter__(self):
        for batch in _loaders[self.fake_l.num_workers == 0](self.fake_l):
            yield batch.cuda()
"""
FASTAI_SCRIPT = """
from fastai.data.load import DataLoader
from fastai.optimizer import Optimizer

optimizer = Optimizer(model.parameters())
train, test = DataLoader([torch.randn(4, 64)] * 1000), DataLoader([torch.randn(100, 64)] * 1000)
for epoch in range(1000):
    for x in train:
        model(x).sum().backward()
        optimizer.step()
        model.zero_grad()
    for x in test:
        model(x)
"""


def test_loaders_and_optimizers_of_fastai_are_observed(tmp_path):
    (tmp_path / "fastai" / "data").mkdir(parents=True)
    (tmp_path / "fastai" / "optimizer.py").write_text(textwrap.dedent(FASTAI_OPTIMIZER))
    (tmp_path / "fastai" / "data" / "load.py").write_text(textwrap.dedent(FASTAI_LOADER))
    trace = traced(tmp_path, HEAD + FASTAI_SCRIPT)
    assert not trace.partial
    assert trace.header.steps == 3
    assert by_category(trace)["optimizer state"] == BODY + TOP
    assert sum(event.bytes == 100 * 64 * 4 for event in trace.events if event.action == "alloc") == 2


KERAS_OPTIMIZER = """
class BaseOptimizer:
    def __init__(self):
        self._trainable_variables, self.variables = [], []

    def apply(self, grads, trainable_variables=None):
        if not self.variables:
            self._trainable_variables = list(trainable_variables)
            self.variables = [Variable(grad.new_zeros(grad.shape)) for grad in grads]
        for moment, grad in zip(self.variables, grads):
            moment.value.add_(grad)

class Variable:
    def __init__(self, value):
        self.value = value
"""
KERAS_SCRIPT = """
from torch.utils.data import DataLoader
from keras.src.optimizers.base_optimizer import BaseOptimizer, Variable

class Arrays:
    def __init__(self, arrays):
        self.arrays = arrays

    def __len__(self):
        return len(self.arrays[0])

    def __getitems__(self, indices):
        return tuple(array[indices] for array in self.arrays)

loader = DataLoader(Arrays((torch.randn(300, 64), torch.randn(300, 1))), batch_size=128, collate_fn=lambda batch: batch)
weights = [Variable(parameter) for parameter in model.parameters()]
optimizer = BaseOptimizer()
for epoch in range(1000):
    for x, y in loader:
        assert len(x) == len(y)
        (model(x.cuda()).sum() + y.cuda().sum()).backward()
        optimizer.apply([weight.value.grad for weight in weights], weights if GIVEN or not epoch else None)
        model.zero_grad()
"""


@pytest.mark.parametrize("given", [True, False])
def test_arrays_and_optimizers_of_keras_are_observed(tmp_path, given):
    (tmp_path / "keras" / "src" / "optimizers").mkdir(parents=True)
    (tmp_path / "keras" / "src" / "optimizers" / "base_optimizer.py").write_text(KERAS_OPTIMIZER)
    trace = traced(tmp_path, HEAD + KERAS_SCRIPT.replace("GIVEN", str(given)))
    assert not trace.partial
    assert not trace.warnings
    assert trace.header.steps == 3
    assert by_category(trace)["optimizer state"] == by_category(trace)["parameter"] == BODY + TOP
    inputs = [event.bytes for event in trace.events if event.action == "alloc" and event.category == "input"]
    assert inputs[:6] == [128 * 64 * 4, 128 * 4, 128 * 64 * 4, 128 * 4, 44 * 64 * 4, 44 * 4]


def test_archives_written_by_a_script_can_be_opened(tmp_path):
    checks = """
import bz2
import os
import sys
import tarfile

assert os.path.isabs(__file__) and sys.argv[0].endswith("train.py")
with open("data.yaml", "w") as file:
    file.write("names: [a, b]")
with bz2.open("data.bz2", "wt") as file:
    file.write("names")
assert not tarfile.is_tarfile("data.yaml")
assert bz2.open("data.bz2", "rt").read() == "names"
"""
    assert not traced(tmp_path, HEAD + checks + ONE_STEP).partial
    assert not (tmp_path / "data.yaml").exists()
