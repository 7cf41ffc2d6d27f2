"""Synthetic data in place of missing data, and samples of varying length."""

from __future__ import annotations

import importlib.util
import inspect
from types import SimpleNamespace

import pytest

from traced_scripts import allocations, failing, traced, trained

torch = pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.core.errors import UsageError  # noqa: E402 - torch may be absent
from cotenant.tracing.data import length_histogram  # noqa: E402
from cotenant.tracing.data.data_options import DTYPES, parse_sample  # noqa: E402
from cotenant.tracing.data.images import synthetic_torchvision  # noqa: E402
from cotenant.tracing.data.loaders import sample_lengths  # noqa: E402
from cotenant.tracing.data.static_analysis import class_folders  # noqa: E402

TRAIN = """
import torch
from torch.utils.data import DataLoader
{data}
model = torch.nn.LazyLinear(3).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(data, batch_size=4, num_workers=2, shuffle=True{more}):
    x = batch["x"] if isinstance(batch, dict) else batch[0] if isinstance(batch, (list, tuple)) else batch
    model(x.flatten(1).float().cuda()).sum().backward()
    optimizer.step()
"""
FOLDER = """
from torchvision import datasets, transforms
data = datasets.{kind}
assert len(data.classes) == 7 and isinstance(data, torch.utils.data.Dataset)
"""
RESIZE = "transform=transforms.Compose([transforms.RandomCrop(16), transforms.ToTensor()])"
VISION = pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="needs torchvision")
TABLES = pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="needs datasets")


@pytest.mark.parametrize(
    ("data", "values"),
    [
        pytest.param(FOLDER.format(kind=f"ImageFolder('gone', {RESIZE})"), 3 * 16 * 16, id="images", marks=VISION),
        pytest.param(
            FOLDER.format(kind=f"Food101('gone', split='train', download=True, {RESIZE})"),
            3 * 16 * 16,
            id="to be fetched",
            marks=VISION,
        ),
        pytest.param(
            "import numpy\nrows = numpy.load('gone.npy')\ndata = [(row, 1) for row in [rows] * 50]\n",
            3 * 24 * 32,
            id="an array",
        ),
        pytest.param("data = [torch.load('gone.pt')] * 50\n", 3 * 24 * 32, id="a tensor"),
        pytest.param(
            "from datasets import load_dataset\ndata = load_dataset('nobody/nothing', split='train')\n"
            "from torchvision.transforms.functional import to_tensor\n"
            "data.set_transform(lambda rows: {'x': [to_tensor(image) for image in rows['image']]})\n",
            3 * 24 * 32,
            id="a table",
            marks=[VISION, TABLES],
        ),
    ],
)
def test_absent_data_are_synthesized_on_request(tmp_path, data, values, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    source = TRAIN.format(data=data, more="")
    trace = traced(tmp_path, source, synthetic_data=["3x24x32:float32:7"])
    assert 4 * 4 * values in allocations(trace, category="input")
    assert "is not on this machine; replaced by synthetic data: 3x24x32:float32:7" in trace.warnings[0]


@pytest.mark.parametrize(
    ("line", "handler", "has_own"),
    [
        pytest.param("a, b = load(), 2", "except OSError: print('new')", True, id="goes on with its values"),
        pytest.param("a, b = load(), 2", "except OSError: b = None", False, id="makes one"),
        pytest.param("a, b = load(), 2", "except OSError: raise", False, id="fails"),
        pytest.param("a, b = load(), 2", "except KeyError: pass", False, id="is for another error"),
        pytest.param("(a := load())", "except OSError: pass", False, id="assigns nothing"),
    ],
)
def test_a_missing_file_is_made_up_unless_the_script_goes_on_with_values_of_its_own(tmp_path, line, handler, has_own):
    script = tmp_path / "train.py"
    script.write_text(f"a = b = None\ntry:\n    {line}\n{handler}\n")
    names = {"load": class_folders.caller_has_values_of_its_own}
    exec(compile(script.read_text(), str(script), "exec"), names)  # it asks for the line that calls it
    assert names["a"] == has_own


def test_a_missing_pair_of_models_leaves_the_script_its_own(tmp_path):
    pair = "model = 1\ntry:\n    model, data = torch.load('pair.pkl')\nexcept OSError:\n    pass\nassert model == 1\n"
    source = TRAIN.format(data=f"{pair}data = [torch.load('gone.pkl')] * 50\n", more="")
    assert traced(tmp_path, source, synthetic_data=["3x24x32:float32:7"])


@TABLES
def test_a_hint_names_a_table_that_was_made_up(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    source = "from datasets import load_dataset\nload_dataset('nobody/nothing')\nraise ValueError('no column `real`')\n"
    with failing("raised", "no column") as caught:
        traced(tmp_path, source, synthetic_data=["64:int64:100"])
    assert "`nobody/nothing` had to be made up" in caught.value.hint


@VISION
@pytest.mark.parametrize(
    ("construct", "shape", "dims"),
    [
        ("MNIST('gone')", "(60000, 28, 28)", "(0, 1, 2)"),
        ("CIFAR10('gone')", "(50000, 32, 32, 3)", "(0, 1, 2)"),
        ("SVHN('gone')", "(50000, 3, 32, 32)", "(0, 2, 3)"),
        ("PhotoTour('gone', 'liberty')", "(50000, 16, 16)", "(0, 1, 2)"),
    ],
)
def test_pixels_of_a_data_set_differ(tmp_path, construct, shape, dims):
    source = f"""
    import torchvision
    pixels = torchvision.datasets.{construct}.data
    deviation = torch.as_tensor(pixels)[:100].float().std({dims})
    assert tuple(pixels.shape) == {shape} and (deviation > 0).all(), (pixels.shape, deviation)
    """
    trained(tmp_path, source, synthetic_data=("3x16x16:uint8:7",))


@VISION
@pytest.mark.parametrize(
    ("construct", "given", "made"),
    [
        ("MNIST('gone')", "3x224x224:uint8:1000", "1x28x28:uint8:10, its own size"),
        ("FashionMNIST('gone')", "3x32x32:uint8:10", "1x28x28:uint8:10, its own size"),
        ("CIFAR100('gone')", "1x28x28:uint8:10", "3x32x32:uint8:100, its own size"),
        ("CIFAR100('gone')", "3x32x32:uint8", "3x32x32:uint8:100, its own size"),
        ("CIFAR100('gone')", "3x32x32:uint8:20", "3x32x32:uint8:20"),
        ("EMNIST('gone', 'letters')", "1x28x28:uint8:27", "1x28x28:uint8:27"),
        ("Places365('gone')", "3x64x64:uint8:7", "3x64x64:uint8:7"),
    ],
)
def test_images_of_a_data_set_with_one_size_have_it(tmp_path, construct, given, made):
    shape, _, classes = made.partition(",")[0].split(":")
    source = f"""
    import torchvision
    data = torchvision.datasets.{construct}
    image = torchvision.transforms.functional.pil_to_tensor(data[0][0])
    assert list(image.shape) == {list(map(int, shape.split("x")))}, image.shape
    assert len(data.classes) == {classes}, data.classes
    """
    trace = trained(tmp_path, source, synthetic_data=(given,))
    assert trace.warnings[0].endswith(f"replaced by synthetic data: {made}")


@VISION
def test_a_copy_of_a_synthetic_data_set_has_its_own_transforms(tmp_path):
    source = """
    import copy, io, torchvision
    from torchvision.transforms import Resize, PILToTensor, Compose
    size = lambda side: Compose([Resize((side, side)), PILToTensor()])
    training = torchvision.datasets.ImageFolder("gone", transform=PILToTensor())
    testing = copy.deepcopy(training)
    testing.transform = size(8)
    assert training[0][0].shape[-1] == 16 and testing[0][0].shape[-1] == 8
    torch.save(training, saved := io.BytesIO())
    saved.seek(0)
    assert len(torch.load(saved, weights_only=False)) == len(training)
    """
    trained(tmp_path, source, synthetic_data=("3x16x16:uint8:7",))


@VISION
def test_a_data_set_of_videos_has_clips(tmp_path):
    source = """
    import torchvision
    from torchvision.datasets.samplers import RandomClipSampler
    class Numbered(torchvision.datasets.Kinetics):
        def __getitem__(self, index):
            video, audio, info, number = self.video_clips.get_clip(index)
            return video, audio, self.samples[number][1], number
    videos = Numbered("gone", frames_per_clip=8, frame_rate=15, output_format="TCHW")
    index = list(RandomClipSampler(videos.video_clips, 2))[-1]
    video, audio, label, number = videos[index]
    assert video.shape == (8, 3, 16, 24) and label == number % 7 and audio.shape == (1, 0)
    long = torchvision.datasets.UCF101("gone", "gone", frames_per_clip=400, transform=lambda video: video[..., :8, :])
    video, _, label = long[5]
    assert video.shape == (400, 16, 8, 3) and video.dtype == torch.uint8 and len(long) > 1000
    """
    trained(tmp_path, source, synthetic_data=("3x16x24:uint8:7",))


@VISION
def test_patches_of_photographs_have_points_and_matches(tmp_path):
    source = """
    import torchvision
    patches = torchvision.datasets.PhotoTour("gone", "liberty")
    assert patches.labels.unique().tolist() == list(range(7)) and patches.matches.shape == (50000, 3)
    """
    trained(tmp_path, source, synthetic_data=("1x16x16:uint8:7",))


def test_absent_data_are_an_error_that_names_the_option(tmp_path):
    with failing("raised", "FileNotFoundError") as caught:
        traced(tmp_path, "import numpy\n\nnumpy.load('gone.npy')\n")
    assert "(train.py, line 3)" in str(caught.value)
    assert "add `--synthetic-data " in caught.value.hint


def test_existing_data_are_used(tmp_path):
    torch.save(torch.zeros(5), tmp_path / "here.pt")
    source = TRAIN.format(data="data = [torch.load('here.pt')] * 50\n", more="")
    trace = traced(tmp_path, source, synthetic_data=["3x24x32"])
    assert 4 * 4 * 5 in allocations(trace, category="input")
    assert trace.warnings == ()


def test_an_unrelated_error_has_no_hint_about_data(tmp_path):
    with failing("raised", "KeyError") as caught:
        traced(tmp_path, "{}['x']\n")
    assert "stand-in" not in caught.value.hint


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_synthetic_samples_have_the_requested_type(dtype):
    found = synthetic_torchvision.synthetic_tensor(parse_sample(f"3x2:{dtype}:5"))
    assert (found.shape, found.dtype) == ((3, 2), getattr(torch, dtype))


def test_a_data_set_that_may_be_made_up_has_the_parameters_of_its_own():
    class Digits:
        def __init__(self, root, train=True, *, download=False):
            """Of digits."""

    module = SimpleNamespace(__all__=["Digits"], Digits=Digits)
    found = synthetic_torchvision.dataset_patches(module, parse_sample("3x2"), print)
    (patch,) = (patch for patch in found if patch.target == "torchvision.datasets:Digits.__init__")
    init = patch.replacement(Digits.__init__)
    for ask in (inspect.signature, inspect.getfullargspec, inspect.getdoc):
        assert ask(init) == ask(Digits.__init__)


@pytest.mark.parametrize(
    ("which", "length"), [pytest.param("longest", 109, id="longest"), pytest.param("p50", 59, id="percentile")]
)
def test_batches_have_the_given_sequence_length(tmp_path, which, length):
    data = "data = [torch.ones(10 + index) for index in range(100)]\n"
    source = TRAIN.format(data=data, more=", collate_fn=torch.stack")
    trace = traced(tmp_path, source, sequence_lengths=which)
    assert 4 * 4 * length in allocations(trace, category="input")
    (warning,) = trace.warnings
    assert warning.startswith(f"batches are made of samples of length {length}; of 100 samples inspected")
    assert warning.endswith("shortest 10, median 60, P95 105, longest 109")


def test_growing_lengths_are_traced_in_ascending_order(tmp_path):
    data = "data = [torch.ones(10 + index) for index in range(100)]\n"
    source = TRAIN.format(data=data, more=", collate_fn=torch.stack").replace("LazyLinear(3)", "Linear(1, 3)")
    trace = traced(tmp_path, source.replace("x.flatten(1)", "x.unsqueeze(-1)"), sequence_lengths="growing")
    sizes = [size for size in allocations(trace, category="input") if size in {16 * n for n in (89, 99, 109)}]
    assert sizes[:3] == [16 * 89, 16 * 99, 16 * 109]
    (warning,) = trace.warnings
    assert warning.startswith("batches are made of samples of length 89, then 99, then 109; of 100 samples inspected")


PADDED = """
from torch.nn.utils.rnn import pad_sequence
def pad(rows):
    return torch.nn.functional.pad(pad_sequence(rows, batch_first=True), (0, 9))[:, :12]
data = [torch.ones(10 + index % 2) for index in range(100)]
"""


def test_varying_lengths_add_a_warning(tmp_path):
    more = ", collate_fn=pad"
    warnings = traced(tmp_path, TRAIN.format(data=PADDED, more=more).replace("shuffle=True", "shuffle=False")).warnings
    assert len(warnings) == 1
    assert "samples vary in length" in warnings[0]
    assert "`--sequence-lengths longest`" in warnings[0]
    same = PADDED.replace("index % 2", "index * 0")
    assert traced(tmp_path, TRAIN.format(data=same, more=more)).warnings == ()


IMAGES = """
import torch
from torch.utils.data import DataLoader

class Graph:
    def __init__(self, nodes):
        self.nodes = nodes

    def to_dict(self):
        return {{"x": torch.ones(self.nodes, 3), "y": torch.ones(1)}}

def smallest(images):
    return torch.stack([image[:, :8] for image in images])

data = [{image} for index in range(100)]
model = torch.nn.Conv2d(3, 64, 3).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for image in DataLoader(data, batch_size={size}, collate_fn={collate}):
    model(image.cuda()).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("image", "size", "collate", "warnings"),
    [
        pytest.param("torch.ones(3, 8 + index, 8)", 1, "torch.stack", 1, id="images one by one"),
        pytest.param("torch.ones(3, 8 + index, 8)", 4, "smallest", 0, id="images cut to one size"),
        pytest.param("torch.ones(3, 8, 8)", 1, "torch.stack", 0, id="images of one size"),
        pytest.param("Graph(8 + index)", 2, "lambda x: torch.ones(1, 3, x[0].nodes, 8)", 1, id="graphs"),
    ],
)
def test_varying_sizes_add_a_warning_where_batches_vary(tmp_path, image, size, collate, warnings):
    source = IMAGES.format(image=image, size=size, collate=collate)
    assert ["vary in length" in warning for warning in traced(tmp_path, source).warnings] == [True] * warnings


def test_batches_have_the_samples_of_most_elements(tmp_path):
    source = IMAGES.format(image="torch.ones(3, 8 + index, 8)", size=1, collate="torch.stack")
    trace = traced(tmp_path, source, sequence_lengths="longest")
    assert 4 * 3 * 107 * 8 in allocations(trace, category="input")
    (warning,) = trace.warnings
    assert warning.startswith("batches are made of samples of 2568 elements; of 100 samples inspected: shortest 192,")


WORDS = """
def tokens(rows):
    longest = {longest}
    return torch.stack([torch.ones(longest) * len(row["text"]) for row in rows])
data = [{{"text": "word " * (5 + index % 7), "name": f"file{{index}}.png"}} for index in range(60)]
"""


@pytest.mark.parametrize(
    ("longest", "count"),
    [
        pytest.param("max(len(row['text'].split()) for row in rows)", 1, id="padded to the longest"),
        pytest.param("16", 0, id="padded to one length"),
        pytest.param("16 if len({row['name'] for row in rows}) > 1 else missing", 0, id="unreadable"),
    ],
)
def test_varying_text_lengths_add_a_warning_where_batches_vary(tmp_path, longest, count):
    source = TRAIN.format(data=WORDS.format(longest=longest), more=", collate_fn=tokens")
    source = source.replace("LazyLinear(3)", "Linear(1, 3)").replace("x.flatten(1)", "x.unsqueeze(-1)")
    assert len(traced(tmp_path, source).warnings) == count
    if count:
        (warning,) = traced(tmp_path, source, sequence_lengths="longest").warnings
        assert warning.startswith("batches are made of samples of length 11; of 60 samples")


def test_a_short_varying_field_adds_a_warning(tmp_path):
    data = """
from torch.nn.utils.rnn import pad_sequence
torch.manual_seed(0)  # of 50 shuffles, one begins with four texts of one length
data = [{"sound": torch.ones(30), "text": torch.ones(5 + index % 3)} for index in range(20)]
def both(rows):
    return torch.cat([pad_sequence([row[name] for row in rows]) for name in ("sound", "text")])
"""
    source = TRAIN.format(data=data, more=", collate_fn=both").replace("LazyLinear(3)", "Linear(1, 3)")
    source = source.replace("x.flatten(1)", "x.unsqueeze(-1)")
    (warning,) = traced(tmp_path, source).warnings
    assert warning.startswith("samples vary in length")
    assert 4 * 4 * (30 + 7) in allocations(traced(tmp_path, source, sequence_lengths="longest"), category="input")


def test_an_invalid_length_option_is_an_error(tmp_path):
    with failing("usage", "`--sequence-lengths`: `short` is no length"):
        traced(tmp_path, "", sequence_lengths="short")


def test_the_length_of_a_sample_is_that_of_its_sequence():
    assert sample_lengths.length_of({"ids": [1, 2, 3], "label": 1}) == 3
    assert sample_lengths.length_of((torch.ones(7), torch.ones(3, 8, 8))) == 7
    assert sample_lengths.length_of(torch.ones(3, 8, 8)) == 0
    assert sample_lengths.length_of(("one", "of four words here")) == 4
    assert sample_lengths.length_of(("one", "of four words here"), words=False) == 0


def test_a_histogram_sets_the_lengths_of_batches(tmp_path):
    (tmp_path / "lengths.csv").write_text("length,count\n# tokens\n20,6\n40, 3\n200\t1\n40\n")
    which = length_histogram.inline_histogram("lengths.csv", str(tmp_path))
    assert which == "histogram:20x6,40x4,200x1"
    data = """
from torch.nn.utils.rnn import pad_sequence
data = [{"ids": torch.arange(10), "mask": torch.ones(10, 2), "label": 1} for index in range(100)]
def collate(rows):
    assert all(row["mask"].shape == (len(row["ids"]), 2) and row["label"] == 1 for row in rows)
    return pad_sequence([row["ids"].float() for row in rows])
"""
    source = TRAIN.format(data=data, more=", collate_fn=collate").replace("LazyLinear(3)", "Linear(1, 3)")
    trace = traced(tmp_path, source.replace("x.flatten(1)", "x.unsqueeze(-1)"), sequence_lengths=which)
    sizes = [size for size in allocations(trace, category="input") if size in {16 * n for n in (40, 200)}]
    assert sizes[:3] == [16 * 40, 16 * 200, 16 * 200]
    (warning,) = trace.warnings
    assert warning.endswith("shortest 20, median 20, P95 200, longest 200")


def test_a_histogram_for_samples_without_a_length_adds_a_warning(tmp_path):
    source = TRAIN.format(data="data = [torch.ones(3, 4, 4)] * 8\n", more="")
    (warning,) = traced(tmp_path, source, sequence_lengths="histogram:5x1").warnings
    assert "no part of a sample varies in length" in warning


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("", "has no lengths", id="empty"),
        pytest.param("a\nb\n", "line 2: `b` is no length", id="words"),
        pytest.param("10,-3\n", "line 1: `10,-3` is no length", id="negative"),
        pytest.param("0,3\n", "line 1: `0,3` is no length", id="nothing"),
        pytest.param("1 2 3\n", "line 1", id="too many"),
    ],
)
def test_an_invalid_histogram_is_refused(tmp_path, text, words):
    (tmp_path / "lengths.txt").write_text(text)
    with pytest.raises(UsageError, match=words):
        length_histogram.inline_histogram("lengths.txt", str(tmp_path))


def test_a_length_statistic_is_no_histogram_file(tmp_path):
    assert length_histogram.inline_histogram("p95", str(tmp_path)) == "p95"
    assert length_histogram.parse_histogram("p95") is None
    with pytest.raises(UsageError, match="cannot read lengths"):
        length_histogram.inline_histogram("none.csv", str(tmp_path))


@TABLES
def test_a_loader_of_a_made_up_table_has_many_batches(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    source = """
    from datasets import Dataset, load_dataset
    from torch.utils.data import DataLoader
    own = Dataset.from_dict({"x": [1] * 8})
    assert len(DataLoader(own, batch_size=4)) == 2
    table = load_dataset("nobody/stories", split="train").map(lambda row: row)
    assert len(DataLoader(table, batch_size=128)) == 400
    assert len(DataLoader([0] * 8, batch_size=4)) == 2
    """
    trained(tmp_path, source, synthetic_data=["16:int64:50"])


DRAWN = """
import random
import torch
from torch.utils.data import DataLoader
random.seed(1)
torch.manual_seed(1)
if "numpy" in {side!r}:
    __import__("numpy").random.seed(1)
calls = []
def collate(images):
    calls.append(len(images))
    side = {side}
    return torch.nn.functional.interpolate(torch.stack(images), size=side)
model = torch.nn.Conv2d(3, 64, 3).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for image in DataLoader([torch.ones(3, 32, 32)] * 100, batch_size=4, collate_fn=collate):
    model(image.cuda()).sum().backward()
    optimizer.step()
assert len(calls) {calls}, calls
"""


@pytest.mark.parametrize(
    ("side", "calls"),
    [
        pytest.param("random.choice([24, 28, 32, 36, 40])", "== 33", id="of Python"),
        pytest.param("24 + 4 * int(torch.randint(5, ()))", "== 33", id="of PyTorch"),
        pytest.param("24 + 4 * __import__('numpy').random.randint(5)", "== 33", id="of NumPy"),
        pytest.param(
            "24 + 16 * (len(calls) % 10 == 1 and len(calls) > 20 * (random.random() < 2))",
            "== 33",
            id="for every tenth",
        ),
        pytest.param("40 + 0 * random.randrange(5)", "== 7", id="not of the size"),
        pytest.param("40", "== 1", id="none"),
    ],
)
def test_a_collate_function_that_draws_sizes_is_asked_for_the_largest(tmp_path, side, calls):
    if "numpy" in side:
        pytest.importorskip("numpy")
    trace = traced(tmp_path, DRAWN.format(side=side, calls=calls))
    assert 4 * 3 * 40 * 40 * 4 in allocations(trace, category="input")
    expected = ["the collate function draws the size of batches: after the first, the largest of 33 is traced"]
    assert list(trace.warnings) == expected * ("33" in calls)


def test_indices_of_all_steps_at_once_are_drawn_soon(tmp_path):
    source = """
    from torch.utils.data import RandomSampler
    drawn = list(RandomSampler(range(50000), replacement=True, num_samples=2**25))
    assert len(drawn) == 2**25 and 0 <= min(drawn[:9999]) < max(drawn[:9999]) < 50000
    few = list(RandomSampler(range(50), replacement=True, num_samples=70))
    assert len(few) == 70 and len(list(RandomSampler(range(70)))) == 70
    assert len(set(drawn)) <= 4096 < len(set(RandomSampler(range(50000), replacement=True, num_samples=50000)))
    """
    trained(tmp_path, source)
