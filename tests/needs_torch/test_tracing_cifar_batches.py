"""Files of CIFAR that copies of torchvision's classes read themselves, and that are not on this machine."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from traced_scripts import by_category, traced

SCRIPT = """
import hashlib, os, pickle
import numpy, torch

library = "import os\\ndef is_file(path): return os.path.isfile(path)"
exec(compile(library, "/usr/lib/python3/site-packages/torchvision/datasets/utils.py", "exec"))

def load(name, digest, **options):
    path = os.path.join("data", name)
    assert os.path.isfile(path), "a script would download it"
    md5 = hashlib.md5()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(1024 * 1024), b""):
            md5.update(chunk)
    assert md5.copy().hexdigest() == digest, "corrupted"
    with open(path, "rb") as file:
        return pickle.load(file, **options)

assert hashlib.md5(b"").hexdigest() == "d41d8cd98f00b204e9800998ecf8427e"
assert not os.path.exists("data/batch_1") and not os.path.exists("data/raw/test")
batch = load("cifar-10-batches-py/data_batch_1", "c99cafc152244af753f735de768cd75f", encoding="latin1")
assert batch["data"].reshape(10000, 3, 32, 32).std() > 0 and set(batch["labels"]) == set(range(10))
assert is_file("data/cifar-10/data_batch_2") and not is_file("data/other"), "torchvision's `check_integrity` asks"
assert load("cifar-10/data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec", encoding="latin1")["data"].any()
test = load("cifar-100-python/test", "f0ef6b0ae62326f3e7ffdfab6717acfc", encoding="bytes")
assert test[b"data"].shape == (10000, 3072) and len(set(test[b"coarse_labels"])) == 20
names = load("cifar-100-python/meta", "7973b15100ade9c7d40fb424638fde48")["fine_label_names"]
model = torch.nn.Linear(3072, len(names)).cuda()
inputs = torch.from_numpy(numpy.vstack([batch["data"]])[:50]).float().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(inputs).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_files_of_cifar_have_their_form_and_digests(tmp_path):
    trace = traced(tmp_path, SCRIPT, synthetic_data=["3x32x32:uint8:10"])
    assert by_category(trace)["parameter"] == 4 * (3072 * 100 + 100)
    assert any("cifar-10-batches-py/data_batch_1`, a file of CIFAR," in warning for warning in trace.warnings)
