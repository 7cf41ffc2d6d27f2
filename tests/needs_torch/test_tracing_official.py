"""Official example scripts without their data, or with a handful of samples."""

from __future__ import annotations

import importlib.util

import pytest

from traced_scripts import allocations, failing, traced

torch = pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.data.data_options import parse_sample  # noqa: E402
from cotenant.tracing.data.tables import synthetic_hf_datasets  # noqa: E402 - torch may be absent

VISION = pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="needs torchvision")
TRAIN = """
import torch
from torch.utils.data import DataLoader
{data}
model = torch.nn.LazyLinear(3).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, *_ in DataLoader(data, batch_size={batch}):
    model(x.flatten(1).float().cuda()).sum().backward()
    optimizer.step()
"""
DIGITS = """
from torchvision import datasets, transforms
data = datasets.{kind}("gone", train=True, download=True, transform=transforms.ToTensor())
assert len(data.classes) == 10 and set(data.targets.tolist()) == set(range(10))
assert data.data.shape == (len(data), 28, 28)
"""
PAIRS = """
from PIL import Image
from torchvision import datasets
class Pairs(datasets.{kind}):
    def __getitem__(self, index):
        image = self.data[index]
        image = torch.as_tensor(image).float()
        return torch.stack([image, image]), self.targets[index]
data = Pairs("gone", train=True, download=True)
"""
SAMPLES = """
from torchvision import datasets, transforms
class Named(datasets.ImageFolder):
    def __getitem__(self, index):
        return (*super().__getitem__(index), self.samples[index][0])
data = Named("gone", transforms.ToTensor())
assert data.targets[:3] == [0, 1, 2] and len(data.imgs) == len(data)
"""
FLOWS = """
from torchvision import datasets
def both(first, second, flow, valid):
    assert flow.shape == (2, first.height, first.width)
    return torch.from_numpy(flow), torch.zeros(3, 2), torch.from_numpy(flow), valid
data = datasets.FlyingChairs("gone", transforms=both)
assert len(data[0]) == 3
"""
LATER = """
from torchvision import datasets, transforms
data = datasets.MNIST("gone")
data.transform = transforms.Compose([transforms.Resize(14), transforms.ToTensor()])
data.target_transform = float
assert isinstance(data[0][1], float)
"""
MASKS = """
from torchvision import datasets
from torchvision.transforms.functional import pil_to_tensor
data = datasets.VOCSegmentation("gone", transforms=lambda *both: [pil_to_tensor(image) for image in both])
assert data[0][1].shape == (1, 8, 9)
"""
PETS = """
from torchvision import datasets
from torchvision.transforms.functional import pil_to_tensor
options = dict(transform=pil_to_tensor, target_transform=pil_to_tensor)
data = datasets.OxfordIIITPet("gone", target_types="segmentation", **options)
assert data[0][1].shape == (1, 8, 9)
both = datasets.OxfordIIITPet("gone", target_types=["category", "binary-category"])
assert both[4][1] == (4, 0) and datasets.OxfordIIITPet("gone")[4][1] == 4
"""
FACES = """
from torchvision import datasets
from torchvision.transforms.functional import pil_to_tensor
data = datasets.CelebA("gone", transform=pil_to_tensor)
assert sorted(data[0][1].tolist()) == [0] * 20 + [1] * 20
several = datasets.CelebA("gone", target_type=["identity", "bbox", "landmarks"])
assert [target.shape for target in several[0][1]] == [(), (4,), (10,)]
assert datasets.CelebA("gone", target_type=[])[0][1] is None
"""
BOXES = """
from torchvision import datasets
from torchvision.transforms.functional import pil_to_tensor
data = datasets.VOCDetection("gone", transform=pil_to_tensor, target_transform=lambda target: target["annotation"])
assert {"xmin", "ymin", "xmax", "ymax"} == set(data[0][1]["object"][0]["bndbox"])
data.target_transform = lambda target: len(target["annotation"]["object"])
"""


@VISION
@pytest.mark.parametrize(
    ("data", "shape", "values"),
    [
        pytest.param(DIGITS.format(kind="MNIST"), "1x28x28:uint8:10", 28 * 28, id="digits"),
        pytest.param(DIGITS.format(kind="FashionMNIST"), "1x28x28:uint8:10", 28 * 28, id="a kin of theirs"),
        pytest.param(PAIRS.format(kind="MNIST"), "1x28x28:uint8:10", 2 * 28 * 28, id="a script's own pairs of digits"),
        pytest.param(PAIRS.format(kind="CIFAR10"), "3x32x32:uint8:10", 2 * 3 * 32 * 32, id="and of photographs"),
        pytest.param(FLOWS, "3x8x9:uint8:5", 2 * 8 * 9, id="two images and the flow between them"),
        pytest.param(LATER, "1x28x28:uint8:10", 14 * 14, id="transforms that are set later"),
        pytest.param(MASKS, "3x8x9:uint8:5", 3 * 8 * 9, id="masks"),
        pytest.param(PETS, "3x8x9:uint8:5", 3 * 8 * 9, id="masks of pets"),
        pytest.param(FACES, "3x8x9:uint8:5", 3 * 8 * 9, id="attributes of faces"),
        pytest.param(BOXES, "3x8x9:uint8:5", 3 * 8 * 9, id="boxes"),
        pytest.param(SAMPLES, "3x8x9:uint8:5", 3 * 8 * 9, id="named files"),
    ],
)
def test_synthetic_datasets_have_the_fields_that_scripts_read(tmp_path, data, shape, values):
    trace = traced(tmp_path, TRAIN.format(data=data, batch=4), synthetic_data=[shape])
    assert 4 * 4 * values in allocations(trace, category="input")
    assert f"is not on this machine; replaced by synthetic data: {shape}" in trace.warnings[0]


@VISION
def test_a_download_that_fails_names_the_option(tmp_path):
    with failing("raised", "Error downloading") as caught:
        traced(tmp_path, "from torchvision.datasets import MNIST\n\nMNIST('gone', download=True)\n")
    assert "add `--synthetic-data " in caught.value.hint


ONLY_12 = "a data set has 12 samples for batches of 64: the only batch"
FEW = "data = torch.utils.data.TensorDataset(torch.zeros({count}, 8))\n"


@pytest.mark.parametrize(
    ("count", "batch", "expected_warnings"),
    [
        pytest.param(
            12,
            64,
            (f"{ONLY_12} and its memory are smaller than with enough data",),
            id="less than a batch",
        ),
        pytest.param(64, 64, (), id="a whole one"),
    ],
)
def test_too_few_samples_for_a_batch_add_a_warning(tmp_path, count, batch, expected_warnings):
    more = "with torch.no_grad():\n    [model(x.cuda()) for x, in DataLoader(data, batch_size=100)]\n"
    trace = traced(tmp_path, TRAIN.format(data=FEW.format(count=count), batch=batch) + more)
    assert trace.warnings == expected_warnings


@pytest.mark.parametrize(
    "more",
    [
        pytest.param("", id="one epoch"),
        pytest.param(
            "while True:\n    [model(x) for x, in DataLoader(data, batch_size=64, drop_last=True)]\n",
            id="no last epoch",
        ),
    ],
)
def test_a_loader_without_a_batch_is_an_error(tmp_path, more):
    batch = "64, drop_last=True"
    with failing("no-step") as caught:
        traced(tmp_path, TRAIN.format(data=FEW.format(count=12), batch=batch) + more)
    assert caught.value.hint == f"{ONLY_12} is dropped (`drop_last`)"


AVERAGES = """
import torch
model = torch.nn.Linear(8, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = model(torch.zeros(4, 8).cuda()).sum()
    loss.backward()
    optimizer.step()
    correct = torch.tensor([True, False, True]).cuda().float().sum(0, keepdim=True)[0]
    total = torch.{make}
    assert total.is_cuda and total.tolist() == {values}, total.tolist()
"""


@pytest.mark.parametrize(
    ("make", "values"),
    [
        pytest.param("tensor([correct, 5], dtype=torch.float32, device='cuda')", [2.0, 5.0], id="beside a number"),
        pytest.param("tensor([[correct], [correct]]).cuda()", [[2.0], [2.0]], id="nested"),
        pytest.param("zeros(1).cuda().new_tensor((correct, 1))", [2.0, 1.0], id="of another's kind"),
        pytest.param("as_tensor([loss.detach() * 0 + 1, correct]).cuda()", [1.0, 2.0], id="one nobody knows"),
    ],
)
def test_gpu_scalars_are_stacked_into_a_tensor(tmp_path, make, values):
    trace = traced(tmp_path, AVERAGES.format(make=make, values=values))
    assert not trace.partial
    assert trace.warnings == ()


COCO = """
from torchvision.datasets import CocoDetection
from torchvision.transforms.functional import pil_to_tensor

class Boxes(CocoDetection):
    def __getitem__(self, index):
        image, found = super().__getitem__(index)
        assert len(found) == 8 and found[0]["bbox"] == [0.0, 0.0, 5.0, 4.0], found
        return pil_to_tensor(image), len(found)

data = Boxes("gone", "gone.json")
assert data.coco.imgs[data.ids[0]]["height"] == 8
"""
LIBRARY = """
class COCO:
    def __init__(self, annotation_file=None):
        if annotation_file is not None:
            open(annotation_file)

    def createIndex(self):
        self.imgs = {image["id"]: image for image in self.dataset["images"]}

    def getAnnIds(self, image):
        return [annotation for annotation in self.dataset["annotations"] if annotation["image_id"] == image]

    def loadAnns(self, found):
        return found

    def loadImgs(self, image):
        return [self.imgs[image]]
"""


@VISION
def test_coco_annotations_are_synthesized(tmp_path):
    package = tmp_path / "pycocotools"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "coco.py").write_text(LIBRARY)
    trace = traced(tmp_path, TRAIN.format(data=COCO, batch=4), synthetic_data=["3x8x10:uint8:5"])
    assert 4 * 4 * 3 * 8 * 10 in allocations(trace, category="input")
    assert trace.warnings[0] == "`gone.json` is not on this machine; replaced by synthetic data: 3x8x10:uint8:5"


COCO_CLASSES = """
from pycocotools.coco import COCO

numbers = [category["id"] for category in COCO("gone.json").dataset["categories"]]
assert len(numbers) == 80 and (numbers[0], numbers[11], numbers[-1]) == (1, 13, 90), numbers
assert {annotation["category_id"] for annotation in COCO("gone.json").dataset["annotations"]} == set(numbers)
frames, objects = COCO("gone.json").dataset["images"], COCO("gone.json").dataset["annotations"]
assert {image["video_id"] for image in frames} == {1} and [image["frame_id"] for image in frames[:2]] == [1, 2]
of_one = [annotation["track_id"] for annotation in objects if annotation["image_id"] == 3]
assert len(of_one) == len(set(of_one)) > 1 and {annotation["track_id"] for annotation in objects} == set(of_one)
data = [(torch.zeros(3), 0)] * 16
"""


@pytest.mark.parametrize("classes", [80, 81, 90, 91])
def test_the_classes_of_coco_have_its_numbers(tmp_path, classes):
    package = tmp_path / "pycocotools"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "coco.py").write_text(LIBRARY)
    traced(tmp_path, TRAIN.format(data=COCO_CLASSES, batch=4), synthetic_data=[f"3x8x10:uint8:{classes}"])


@pytest.mark.parametrize(
    ("name", "part", "texts", "classes"),
    [
        pytest.param("glue", "mrpc", {"sentence1": 32, "sentence2": 32}, 2, id="a part of a collection"),
        pytest.param("glue", "stsb", {"sentence1": 32, "sentence2": 32}, 0, id="numbers instead of classes"),
        pytest.param("imdb", "", {"text": 64}, 2, id="reviews"),
        pytest.param("cnn_dailymail", "3.0.0", {"article": 64, "highlights": 64}, 0, id="summaries"),
        pytest.param("squad", "", {"context": 64, "question": 4}, 0, id="questions"),
        pytest.param("swag", "regular", {"sent1": 21, "sent2": 21, "ending3": 21}, 4, id="choices"),
        pytest.param("nothing", "", {"text": 64, "sentence": 64}, 2, id="one nobody knows"),
    ],
)
def test_synthetic_tables_have_the_columns_that_examples_read(name, part, texts, classes):
    columns, found = synthetic_hf_datasets.synthetic_columns([parse_sample("64:int64:30000")], name, part)
    assert {text: len(columns[text][0].split()) for text in texts} == texts
    assert found == classes
    assert len(set(map(str, columns.get("label", [])))) == (classes or ("label" in columns))
    assert {len(column) for column in columns.values()} == {synthetic_hf_datasets.ROWS}


@pytest.mark.parametrize(("words", "rows"), [(64, 1000), (1024, 1000), (8192, 128), (100_000, 128)])
def test_tables_of_long_texts_have_fewer_rows(words, rows):
    columns, _ = synthetic_hf_datasets.synthetic_columns([parse_sample(f"{words}:int64:30000")], "nothing", "")
    assert {len(values) for values in columns.values()} == {rows}
    assert len(columns["text"][-1].split()) == words


def test_tables_of_corpora_have_texts_alone():
    columns, _ = synthetic_hf_datasets.synthetic_columns(
        [parse_sample("64:int64:30000")], "wikitext", "wikitext-2-raw-v1"
    )
    assert list(columns) == ["text"]
    assert len(columns["text"]) == synthetic_hf_datasets.ROWS


def test_tables_of_recordings_have_fewer_rows_with_any_column():
    columns, _ = synthetic_hf_datasets.synthetic_columns([parse_sample("160000:float32")], "common_voice", "hi")
    assert {len(column) for column in columns.values()} == {128}
    assert columns["audio"][0]["array"].shape == (160_000,)
    short, _ = synthetic_hf_datasets.synthetic_columns([parse_sample("16000:float32")], "speech_commands", "")
    assert len(short["audio"]) == synthetic_hf_datasets.ROWS


def test_synthetic_sets_of_named_entities_have_a_tag_for_each_word():
    columns, _ = synthetic_hf_datasets.synthetic_columns([parse_sample("64:int64:30000")], "conll2003", "")
    assert columns["tokens"][0] == ["word"] * 64
    assert set(columns["ner_tags"][0]) == set(range(9))
    assert len(columns["ner_tags"][0]) == len(columns["pos_tags"][0]) == 64


def test_synthetic_translations_have_the_requested_languages():
    columns, _ = synthetic_hf_datasets.synthetic_columns([parse_sample("8:int64")], "wmt16", "ro-en")
    assert columns["translation"][0] == {"ro": " ".join(["word"] * 8), "en": " ".join(["word"] * 8)}


LIBRARY_OF_TABLES = """
class ClassLabel:
    def __init__(self, names):
        self.names = names

class Dataset:
    @classmethod
    def from_dict(cls, columns):
        made = cls()
        made.column_names, made.features = list(columns), dict.fromkeys(columns)
        return made

    def cast_column(self, name, kind):
        self.features[name] = kind
        return self

class DatasetDict(dict):
    pass

def load_dataset(path, name=None, **kwargs):
    raise FileNotFoundError(path)

load_from_disk = load_dataset
"""
LABELS = """
import torch
from datasets import load_dataset
found = load_dataset("nyu-mll/glue", "mnli")
assert len(found["validation_matched"].features["label"].names) == 3
columns = load_dataset("glue", "mrpc", split=["train", "test"])[1].column_names
assert columns == ["sentence1", "sentence2", "label", "idx"]
model = torch.nn.Linear(8, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.zeros(4, 8).cuda()).sum().backward()
    optimizer.step()
"""


def test_synthetic_hub_datasets_have_class_names(tmp_path):
    (tmp_path / "datasets.py").write_text(LIBRARY_OF_TABLES)
    trace = traced(tmp_path, LABELS, synthetic_data=["64:int64:30000"])
    assert trace.warnings == (
        "the data set `nyu-mll/glue` is not on this machine; replaced by synthetic data: 64:int64:30000",
        "the data set `glue` is not on this machine; replaced by synthetic data: 64:int64:30000",
    )


BY_HAND = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(8, 8).cuda()
for epoch in range(100):
    for x in {batches}:
        model.zero_grad()
        model(x.cuda()).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.data.add_(parameter.grad, alpha=-0.1)
    with torch.no_grad():
        model(torch.zeros(100, 8).cuda())
"""


@pytest.mark.parametrize(
    ("batches", "validated"),
    [
        pytest.param("[torch.zeros(4, 8)] * 1000", False, id="a loop of its own"),
        pytest.param("DataLoader([torch.zeros(8)] * 4000, batch_size=4)", True, id="batches of a loader"),
    ],
)
def test_weights_updated_without_an_optimizer_are_traced(tmp_path, batches, validated):
    trace = traced(tmp_path, BY_HAND.format(batches=batches))
    assert not trace.partial
    assert trace.warnings[0] == "the script has no optimizer: 20 backward passes were traced instead"
    assert (4 * 100 * 8 in allocations(trace)) == validated


def test_a_training_on_the_cpu_without_an_optimizer_does_not_end_the_trace(tmp_path):
    source = """
    import torch
    rows = torch.ones(100, 8, device="cuda")
    x = torch.tensor(5.0, requires_grad=True)
    for _ in range(100):
        (x ** 2).backward()
        x.data -= 0.1 * x.grad
        x.grad.zero_()
    model = torch.nn.Linear(8, 1000).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        model(rows).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    """
    trace = traced(tmp_path, source)
    assert (trace.header.steps, trace.warnings) == (3, ())
    assert 4 * 100 * 1000 in allocations(trace)


FIRST_BY_HAND = """
import torch
rows = torch.ones(100, 8, device="cuda")
model = torch.nn.Linear(8, 1000).cuda()

def fit(step, rounds):
    for _ in range(rounds):
        advance(step)

def advance(step):
    model(rows).sum().backward()
    step()

def by_hand():
    for parameter in model.parameters():
        parameter.data.add_(parameter.grad, alpha=-0.1)

weight = torch.zeros(8, 1, device="cuda", requires_grad=True)
for _ in range({rounds}):
    (rows @ weight).sum().backward()
    weight.data -= weight.grad
    weight.grad = None
fit({step}, 50)
"""


@pytest.mark.parametrize(
    ("rounds", "step", "warning"),
    [
        pytest.param(100, "torch.optim.SGD(model.parameters(), lr=0.1).step", None, id="an optimizer"),
        pytest.param(
            100, "by_hand", "the script has no optimizer: 120 backward passes were traced instead", id="by hand, too"
        ),
        pytest.param(
            100_000,
            "by_hand",
            "the training at train.py, line 23, runs only after the traced part; its memory is not included",
            id="behind many rounds",
        ),
    ],
)
def test_what_follows_a_training_by_hand_is_traced_or_named(tmp_path, rounds, step, warning):
    trace = traced(tmp_path, FIRST_BY_HAND.format(rounds=rounds, step=step))
    assert trace.warnings[-1:] == ((warning,) if warning else ())
    assert (4 * 100 * 1000 in allocations(trace)) == (rounds == 100)
    if not warning:  # three steps, for gradients and states of the second
        assert allocations(trace).count(4 * 8 * 1000) >= 1 + 3


@pytest.mark.parametrize(
    ("passes", "warned"),
    [
        pytest.param(30, [], id="all"),
        pytest.param(300, ["200 backward passes were traced instead, and GPU memory still grew with each"], id="many"),
    ],
)
def test_gradients_that_are_gathered_without_an_optimizer_are_traced_as_long_as_they_grow(tmp_path, passes, warned):
    source = f"""
    import torch
    weight = torch.nn.Parameter(torch.zeros(1000, device="cuda"))
    gathered = [torch.autograd.grad((weight * 2).sum(), weight) for _ in range({passes})]
    whole = torch.stack([gradient for gradient, in gathered])
    """
    trace = traced(tmp_path, source)
    assert (4000 * passes in allocations(trace)) == (not warned)
    assert [text.partition(": ")[2] for text in trace.warnings] == warned


GRAPH = """
import torch
edges = torch.stack([torch.arange(50), torch.arange(50)])
near = torch.sparse_coo_tensor(edges, torch.ones(50, dtype=torch.float64), (64, 64)).to("cuda")
assert near.is_cuda and near.is_sparse and near._nnz() == 50 and near.dtype == torch.float64
near = near.to(torch.float32)
back = near.cpu()
assert back.is_sparse and not back.is_cuda and back.shape == (64, 64)
weight = torch.nn.Parameter(torch.zeros(64, 8, device="cuda"))
optimizer = torch.optim.Adam([weight])
for _ in range(3):
    optimizer.zero_grad()
    torch.spmm(near, weight).sum().backward()
    assert weight.grad.shape == (64, 8)
    optimizer.step()
"""


def test_a_sparse_matrix_can_move_to_the_gpu(tmp_path):
    trace = traced(tmp_path, GRAPH)
    assert not trace.partial
    loaded = allocations(trace, "load")
    assert loaded.count(2 * 50 * 8) == 3  # indices, when it moves, when its type changes and when a product sorts them
    assert {50 * 8, 50 * 4} <= set(loaded)


SHARDED = """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group("nccl", rank=0, world_size=2, init_method="tcp://127.0.0.1:29511")
with torch.device("meta"):
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256, bias=False) for _ in range(3)])
for layer in model:
    fully_shard(layer)
fully_shard(model)
first = model[0].weight
model.to_empty(device="cuda")
assert model[0].weight is first and first.to_local().shape == (128, 256) and first.to_local().is_cuda
for layer in model:
    layer.reset_parameters()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    model(torch.zeros(4, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_sharded_meta_model_is_materialized(tmp_path):
    pytest.importorskip("torch.distributed.tensor", reason="needs a torch with DTensor")
    trace = traced(tmp_path, SHARDED)
    assert not trace.partial
    states = [size for size in allocations(trace, "step", "optimizer state") if size > 4]
    assert states == [4 * 128 * 256] * 6
