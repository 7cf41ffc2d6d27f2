"""Files of MNIST that a script reads itself and that are not on this machine."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from traced_scripts import by_category, traced

SCRIPT = """
import gzip, os, struct
import numpy, torch

def load(kind, opener=open, ending=""):
    assert os.path.exists("data/raw"), "no folder"
    with opener(f"data/raw/{kind}-ubyte{ending}", "rb") as file:
        header = ">4i" if "images" in kind else ">2i"
        magic, *shape = struct.unpack(header, file.read(struct.calcsize(header)))
        return magic, numpy.frombuffer(file.read(), numpy.uint8).reshape(shape)

(kinds, images), (of_labels, labels) = load("train-images-idx3", gzip.open, ".gz"), load("train-labels-idx1")
assert (kinds, of_labels) == (2051, 2049) and images.std() > 0
assert os.path.exists("data/raw/t10k-labels-idx1-ubyte"), "a script would download it"
assert labels.shape == (60000,) and labels.min() == 0
assert load("emnist-balanced-test-labels-idx1", gzip.open, ".gz")[1].shape == (10000,)
model = torch.nn.Linear(images[0].size, int(labels.max()) + 1).cuda()
inputs = torch.from_numpy(images[:600]).float().flatten(1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(inputs).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("sample", "pixels", "classes"),
    [
        pytest.param("1x20x30:uint8:7", 600, 7, id="gray images"),
        pytest.param("784:float32", 784, 10, id="no image: as MNIST"),
    ],
)
def test_files_of_mnist_have_their_form(tmp_path, sample, pixels, classes):
    (tmp_path / "data" / "raw").mkdir(parents=True)
    trace = traced(tmp_path, SCRIPT, synthetic_data=[sample])
    assert by_category(trace)["parameter"] == 4 * (pixels * classes + classes)
    assert any("train-images-idx3-ubyte.gz`, a file of MNIST," in warning for warning in trace.warnings)
