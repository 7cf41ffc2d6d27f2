"""What popular training scripts do around training: own modules, terminals, children, summaries, self-tests, data."""

from __future__ import annotations

import importlib.util
import itertools
import textwrap

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from traced_scripts import allocations, by_category, failing, peak, traced

TABLES = pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="needs datasets")
TRAIN = """
import torch
from torch import nn

model = nn.Linear(64, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(batches=[torch.zeros(4, 64)] * 5):
    for batch in batches:
        model(batch.float().cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
WEIGHTS = 4 * (64 * 8 + 8)


def trained(folder, source, *args, **options):
    trace = traced(folder, TRAIN + textwrap.dedent(source), *args, **options)
    assert by_category(trace)["parameter"] == WEIGHTS
    return trace


@pytest.mark.parametrize("form", ["module", "package"])
def test_a_script_has_a_module_named_datasets(tmp_path, form):
    source = "import torch\nimport datasets as itself\ndef build():\n    return [torch.zeros(64)] * 40\n"
    if form == "module":
        (tmp_path / "datasets.py").write_text(source)
    else:
        (tmp_path / "datasets").mkdir()
        (tmp_path / "datasets" / "__init__.py").write_text("import torch\nfrom .own import build\n")
        (tmp_path / "datasets" / "own.py").write_text(source)
    trace = trained(
        tmp_path,
        """
        from datasets import build
        train(torch.utils.data.DataLoader(build(), 4))
        """,
        synthetic_data=["3x8x8"],
    )
    assert trace.warnings == ()


COLUMNS = """
from datasets import concatenate_datasets, load_dataset
rows = load_dataset("someone/gone", split="train")
assert rows.column_names[:2] == ["image", "text"] and "tags" in rows.column_names
rows = rows.map(lambda batch: {"n": [len(text) for text in batch["description"]]}, batched=True)
assert rows[0]["instruction"] and rows[0].get("weight") is None and "answers" not in rows[0]
assert rows[:4]["labels"] == [0, 1, 2, 3] and rows["score"][0] == 1.0
assert rows.features["objects"]["category"].feature.names[:2] == ["0", "1"] and "objects" not in rows.column_names
assert rows.features["Label"].names[:2] == ["0", "1"] and "Label" not in rows.column_names
assert rows[0]["objects"]["bbox"] == [[0.0, 0.0, 4.0, 4.0]] and rows[0]["image_id"] == 1
assert rows[0]["class_to_id"]["3"] == 3
texts, others = rows.select_columns(["text", "label"]), rows.select_columns(["image", "text", "caption"])
assert concatenate_datasets([texts, others], axis=1).column_names == ["text", "label", "image", "caption"]
rows = rows.rename_column("summary", "short").remove_columns(["absent", "img"]).rename_column("caption", "text")
assert "short" in rows.column_names and "caption" not in rows.column_names
rows = rows.with_transform(lambda batch: {"x": [torch.zeros(64)] * len(batch["chosen"])})
train(row["x"] for row in torch.utils.data.DataLoader(rows, 4))
"""


@TABLES
def test_columns_are_made_when_they_are_read(tmp_path):
    trained(tmp_path, COLUMNS, "--tag_column", "tags", synthetic_data=["3x8x8:uint8:7"])


@TABLES
def test_a_column_that_real_data_lack_stays_an_error(tmp_path):
    source = """
    from datasets import Dataset
    rows = Dataset.from_dict({"text": ["first", "second"]})
    assert [*rows.features] == ["text"] and "audio" not in rows.features
    assert rows[0] == {"text": "first"}
    rows[0]["caption"]
    """
    with failing("raised", "KeyError: 'caption'"):
        trained(tmp_path, source, synthetic_data=["3x8x8"])


def test_folders_of_data_that_arguments_name_exist(tmp_path):
    source = """
    import argparse, os
    parser = argparse.ArgumentParser()
    parser.add_argument("--coco_path")
    parser.add_argument("--output_dir")
    args = parser.parse_args()
    assert os.path.isdir(args.coco_path) and not os.path.exists(args.output_dir)
    assert os.listdir(args.coco_path)[0].endswith(".jpg")
    train()
    """
    folder = tmp_path / "gone" / "coco"
    arguments = ("--coco_path", str(folder), f"--output_dir={tmp_path}/runs")
    trained(tmp_path, source, *arguments, synthetic_data=["3x8x8"])
    assert not folder.exists()
    other = tmp_path / "other"
    other.mkdir()
    with failing("raised", "isdir(args.coco_path)"):
        trained(other, source, *arguments)


def test_missing_files_of_tokens_are_zeros(tmp_path):
    source = """
    import glob
    import numpy as np
    from pathlib import Path
    tokens = np.memmap("data/train.bin", dtype=np.uint16, mode="r")
    assert isinstance(tokens, np.memmap) and tokens.dtype == np.uint16 and len(tokens) > 10**6
    files = [sorted(glob.glob("fine/train_*.bin")), sorted(Path("more").glob("*.bin")), glob.glob("all.bin") * 2]
    for _, file in files:
        header = torch.from_file(str(file), False, 256, dtype=torch.int32)
        assert header[0] == 20240520 and header[1] == 1 and Path(file).stat().st_size == 1024 + 2 * int(header[2])
        with open(file, "rb") as opened:
            opened.seek(1024)
            read = torch.from_numpy(np.fromfile(opened, dtype=np.uint16, count=256).astype(np.int64))
            train([read.reshape(4, 64)] * 5)
    assert not glob.glob("fine/train_*.npy")
    """
    warnings = trained(tmp_path, source, synthetic_data=["3x8x8"]).warnings
    assert any("data/train.bin" in warning for warning in warnings)
    with failing("raised", "data/train.bin"):
        trained(tmp_path, source)


@pytest.mark.parametrize(
    ("sample", "end_of_text"),
    [("64:int64:50257", 50256), ("64:int64:50304", 50256), ("64:int64:8192", 8191), ("64:int64:100000", 65535)],
)
def test_the_first_texts_of_a_file_of_tokens_are_separated(tmp_path, sample, end_of_text):
    """As readers do that begin each part of a batch where a text begins."""
    source = f"""
    import glob
    file = glob.glob("fine/train_*.bin")[0]
    tokens = torch.from_file(file, False, 512 + 10**6, dtype=torch.uint16)[512:].to(torch.int64)
    begins = torch.nonzero(tokens == {end_of_text}).squeeze(-1)
    assert begins.tolist() == list(range(0, 10**6, 64)) and int(tokens.sum()) == {end_of_text} * len(begins)
    train([tokens[start : start + 64] for start in begins[:5]])
    """
    trained(tmp_path, source, synthetic_data=[sample])


def test_questions_to_a_terminal_are_answered(tmp_path):
    source = """
    import os, shutil, subprocess
    rows, columns = os.popen("stty size", "r").read().split()
    assert (rows, columns) == ("24", "80") and subprocess.check_output(["stty", "size"]).split() == [b"24", b"80"]
    assert os.get_terminal_size().columns == shutil.get_terminal_size().columns == 80
    assert subprocess.check_output(["echo", "other"]) == b"other\\n"
    train()
    """
    trained(tmp_path, source)


def test_limits_above_those_of_this_machine_are_not_set(tmp_path):
    source = """
    import resource
    _, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, highest))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest - 1, highest))
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (highest - 1, highest)
    train()
    """
    trained(tmp_path, source)


def test_windows_of_opencv_show_nothing(tmp_path):
    (tmp_path / "cv2.py").write_text("def imshow(*args):\n    raise OSError('no screen')\nwaitKey = imshow\n")
    source = """
    import cv2
    cv2.imshow("game", None)
    assert cv2.waitKey(1) == -1
    train()
    """
    trained(tmp_path, source)


def test_a_score_of_labels_that_are_all_alike_is_no_end(tmp_path):
    pytest.importorskip("sklearn", reason="the score is that of scikit-learn")
    source = """
    from sklearn.metrics import log_loss
    assert log_loss([0, 1], [0.5, 0.5]) > 0.6
    assert log_loss(torch.tensor([0, 1]).cuda().cpu().tolist()[:1], [0.5]) == 0
    train()
    """
    (warning,) = trained(tmp_path, source).warnings
    assert "`log_loss` of scikit-learn has no value here (" in warning


def test_a_metric_accepts_the_values_of_a_gpu(tmp_path):
    package = tmp_path / "torchmetrics" / "functional" / "classification"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parents[1]):
        (folder / "__init__.py").touch()
    check = "    if len(torch.unique(preds)) > classes:\n        raise RuntimeError('more unique values')\n"
    body = f"import torch\ndef _multiclass_tensor_validation(preds, classes):\n{check}"
    (package / "stat_scores.py").write_text(body)
    source = """
    from torchmetrics.functional.classification.stat_scores import _multiclass_tensor_validation as validate
    validate(torch.rand(128, 10, device="cuda").argmax(1), 10)
    try:
        validate(torch.arange(20), 10)
    except RuntimeError:
        train()
    """
    trained(tmp_path, source)


def test_a_run_of_weights_and_biases_is_disabled_whatever_the_script_wants(tmp_path):
    package = tmp_path / "wandb" / "sdk"
    package.mkdir(parents=True)
    (package / "wandb_init.py").write_text("def init(project=None, mode=None):\n    return mode\n")
    (package / "__init__.py").touch()
    (package.parent / "__init__.py").write_text("from wandb.sdk.wandb_init import init\n")
    source = """
    import wandb
    assert wandb.init("mine", mode="offline") == wandb.init(mode="online") == "disabled"
    train()
    """
    trained(tmp_path, source)


SUMMARIES = {
    "counter": """
        from torch.utils.flop_counter import FlopCounterMode
        with FlopCounterMode(display=False) as counter:
            model(x).sum().backward()
        assert counter.get_total_flops() == 2 * 2 * 32 * 64 * 8
    """,
    "jit trace": """
        calls = []
        model.register_forward_hook(lambda *_: calls.append(1))
        made = torch.jit.trace(model, x)
        made.save("model.pt")
        assert calls == [1] and made(x).shape == (32, 8)
    """,
    "graph": """
        from torch.utils.tensorboard import SummaryWriter
        writer = SummaryWriter("runs")
        writer.add_graph(model, x)
        writer.add_graph(model, (x,))
        writer.close()
    """,
    "fvcore": """
        from fvcore.nn import FlopCountAnalysis
        assert FlopCountAnalysis(model, x).total() == 0
    """,
    "torchinfo": "import torchinfo\nprint(torchinfo.summary(model, input_size=(32, 64)))\n",
    "thop": "import thop\nassert thop.profile(model, inputs=(x,))[0] > 0\n",
}


@pytest.mark.parametrize("name", SUMMARIES)
def test_summaries_of_a_model_run_it(tmp_path, name):
    needed = {"graph": "tensorboard", "fvcore": "fvcore", "torchinfo": "torchinfo", "thop": "thop"}.get(name, "torch")
    pytest.importorskip(needed)
    trace = trained(
        tmp_path, "x = torch.zeros(32, 64, device='cuda')\n" + textwrap.dedent(SUMMARIES[name]) + "\ntrain()"
    )
    assert 4 * 32 * 8 in allocations(trace)  # the output of the summary's forward pass
    assert any("counts of operations" in sentence for sentence in trace.warnings) == (name == "fvcore")


def test_self_tests_of_computed_values_pass(tmp_path):
    source = """
    x = torch.randn(4, 64, device="cuda")
    full = model(x)
    with torch.autocast("cuda"):
        half = model(x)
    assert torch.allclose(full, half.float(), atol=0.1) and torch.equal(full, model(x))
    assert torch.isclose(full, half.float()).all() and full.isclose(half.float()).all().item()
    torch.testing.assert_close(full, half.float(), atol=0.1, rtol=0.1)
    assert not torch.equal(full, model(x[:2]))
    known = torch.tensor([1.0, 2.0], device="cuda")
    assert not torch.allclose(known, known + 1) and torch.equal(known, known.clone())
    assert not torch.isclose(known, known + 1).any()
    train()
    """
    trained(tmp_path, source)


def test_interpolation_takes_a_number_on_the_cpu(tmp_path):
    source = """
    average, weight = torch.zeros(8, device="cuda"), torch.tensor(0.5)
    average.lerp_(torch.ones(8, device="cuda"), weight)
    assert torch.lerp(average, model.bias, weight).shape == (8,)
    train()
    """
    trained(tmp_path, source)


EVALUATE = """
calls = []
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
    def forward(self, x, y=None):
        calls.append(1)
        out = self.body(x)
        {inside}
        return {{"out": out, "loss": None if y is None else nn.functional.cross_entropy(out, y)}}
net = Net().cuda().eval()
with torch.no_grad():
    for step in range(60):
        x, y = torch.zeros(4 + ({more}), 64, device="cuda"), torch.zeros(4 + ({more}), dtype=torch.long).cuda()
        with torch.autocast("cuda", enabled={autocast}):
            found = net(x, y)
        assert found["out"].shape == (4 + ({more}), 8) and found["loss"].item() == 1.0
print("calls", len(calls), flush=True)
del found, net
train()
"""


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    ("inside", "more", "calls"),
    [
        pytest.param("pass", "0", 4, id="alike"),
        pytest.param("pass", "step % 2", 7, id="two kinds"),
        pytest.param("pass", "step", 8, id="each larger by as much"),
        pytest.param("pass", "step * step", 60, id="none alike"),
        pytest.param("self.saved = getattr(self, 'saved', []) + [out * 2]", "0", 60, id="a call that keeps something"),
        pytest.param("y[y > 0].sum()", "0", 4, id="a size that is assumed"),
        pytest.param("self.train()", "0", 17, id="in training mode from then on"),
    ],
)
def test_alike_evaluations_are_replaced(tmp_path, inside, more, calls, autocast):
    """After three that are alike, 16 in training mode; the very first one differs by the workspace of cuBLAS."""
    trace = traced(tmp_path, TRAIN + EVALUATE.format(inside=inside, more=more, autocast=autocast))
    assert f"calls {calls}\n" in (tmp_path / "log").read_text()
    outputs = [size for size in allocations(trace) if size == 4 * 8 * (2 if autocast else 4)]
    assert len(outputs) >= (60 if more == "0" else 1)


def test_the_last_three_replaced_evaluations_have_their_events(tmp_path):
    """As without replacing, so that their results lie in the same places; those before them have results alone."""

    def batches_of(more_results):
        source = EVALUATE.format(inside="pass", more="0", autocast=True).replace("return {", "return {" + more_results)
        events = traced(tmp_path, TRAIN + source).events
        begins = [index for index, event in enumerate(events) if event.bytes == 4 * 64 * 4 and not event.module]
        kinds = [(event.action, event.bytes, event.module, event.category) for event in events]
        return [kinds[first:last] for first, last in itertools.pairwise(begins[:60])]

    found, whole = batches_of(""), batches_of("'step': object(), ")
    assert [batch == other for batch, other in zip(found, whole, strict=True)] == [True] * 4 + [False] * 53 + [True] * 2


def test_replaced_evaluations_change_no_peak(tmp_path):
    def peaks(changed):
        trace = traced(tmp_path, TRAIN + EVALUATE.format(inside=changed, more="0", autocast=True))
        return [peak(trace, phase) for phase in ("load", "forward", "backward", "step")]

    assert peaks("pass") == peaks("bool(y.sum() == 0)")


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_evaluations_are_recorded_where_results_pile_up(tmp_path, mode):
    """The peak is in the last one, on top of all results."""

    def trace_of(inside):
        source = EVALUATE.format(inside=inside, more="0", autocast=False).replace("del found, net", "del found")
        piling = source.replace("calls = []", "calls, kept = [], []").replace(
            "    assert found", "    kept.append(found); assert found"
        )
        return traced(tmp_path, TRAIN + piling.replace(".eval()", f".{mode}()"))

    replaced, computed = trace_of("pass"), trace_of("bool(y.sum() == 0)")
    assert [peak(replaced, phase) for phase in ("load", "forward")] == [
        peak(computed, phase) for phase in ("load", "forward")
    ]
    sizes = [(event.action, event.bytes) for event in replaced.events]
    assert sizes.count(("alloc", 4 * 128 * 4)) >= 2 * 60


SAMPLER = """
calls = []
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*[nn.Linear(16, 16) for _ in range(40)])
    def forward(self, x, t):
        calls.append(1)
        {inside}
        return self.body(x) + t[:, None]
class Sampler(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()
    def forward(self, x):
        kept = []
        with torch.no_grad():
            for step in range(100):
                x = x - self.net(x, x.new_ones(len(x)) * step)
                {after}
        return self.net.body[0](x) if self.training else x
net = Sampler().cuda().{mode}()
with torch.set_grad_enabled(net.training):
    net(torch.zeros(4, 16, device="cuda"))
print("calls", len(calls), flush=True)
del net
train()
"""


@pytest.mark.parametrize("after", ["pass", "kept.append(x)"])
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_steps_of_a_sampler_inside_a_forward_are_replaced(tmp_path, mode, after):
    def peaks(inside):
        trace = traced(tmp_path, TRAIN + SAMPLER.format(inside=inside, mode=mode, after=after))
        return [peak(trace, phase) for phase in ("load", "forward")]

    found = peaks("pass")
    assert "calls 16\n" in (tmp_path / "log").read_text()
    assert found == peaks("bool(x.sum() == 0)")
    assert "calls 100\n" in (tmp_path / "log").read_text()
