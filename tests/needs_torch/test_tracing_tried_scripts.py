"""What scripts of public repositories do before they train, retyped small: each once had no answer, or a wrong one."""

from __future__ import annotations

import importlib.util
import os
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.core.ports import EstimateRequest
from cotenant.estimators.traced import TracedEstimator
from traced_scripts import TRAINING, allocations, failing, traced, trained


def test_processes_that_are_not_waited_for_run_at_the_end(tmp_path):
    (tmp_path / "job.py").write_text(TRAINING)
    source = """
    import multiprocessing, os
    def main(rank):
        os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
        from job import train
        train()
    if __name__ == "__main__":
        for rank in range(2):
            multiprocessing.Process(target=main, args=(rank,)).start()
    """
    trace = traced(tmp_path, source)
    assert any("only the first was traced" in warning for warning in trace.warnings)


def test_a_process_has_the_options_of_its_start(tmp_path):
    (tmp_path / "job.py").write_text(TRAINING)
    source = """
    import argparse, multiprocessing, torch
    def main(given):
        assert given is args and args.local_rank == 0, args  # as in a forked process
        torch.cuda.set_device(args.local_rank)
        from job import train
        train()
    if __name__ == "__main__":
        args, started = argparse.Namespace(), []
        for args.local_rank in range(2):
            started.append(multiprocessing.Process(target=main, args=(args,)))
            started[-1].start()
        for process in started:
            process.join()
    """
    traced(tmp_path, source)


def test_a_process_that_is_given_a_model_on_the_gpu_runs_here(tmp_path):
    source = """
    import torch.multiprocessing as mp
    def work(rank, model, batch):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            model(batch.to(next(model.parameters()).device)).sum().backward()
            optimizer.step()
    context = mp.get_context("spawn")
    model.share_memory()
    processes = [context.Process(target=work, args=(rank, model, torch.zeros(2, 4))) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    """
    warnings = traced(tmp_path, TRAINING + textwrap.dedent(source)).warnings
    assert any("only the first was traced" in warning for warning in warnings)


def test_a_spawned_process_starts_in_a_folder_that_exists(tmp_path):
    # Hydra makes a folder for each run, and a trace has it in its overlay.
    (tmp_path / "job.py").write_text(TRAINING)
    source = """
    import multiprocessing, os, sys
    if __name__ == "__main__":
        os.makedirs("outputs/today")
        os.chdir("outputs/today")
        process = multiprocessing.get_context("spawn").Process(target=sys.exit, args=(7,))
        process.start()
        process.join()
        assert process.exitcode == 7, process.exitcode
        assert os.getcwd().endswith("outputs/today")
        from job import train
        train()
    """
    traced(tmp_path, source)
    assert not (tmp_path / "outputs").exists()


def test_the_script_sees_the_cuda_version_of_a_gpu_build(tmp_path):
    source = """
    assert int(torch.version.cuda.split(".")[0]) >= 12
    assert torch.version.hip is None and not hasattr(torch.version, "other")
    library = {}
    exec(compile("import torch; cuda = torch.version.cuda", "/site-packages/library.py", "exec"), library)
    assert library["cuda"] == (None if "cpu" in torch.__version__ else torch.version.cuda)
    """
    trained(tmp_path, source)


def test_two_sparse_gradients_of_a_table_are_added(tmp_path):
    source = """
    import torch
    table = torch.nn.Embedding(10_000, 16, sparse=True).cuda()
    optimizer = torch.optim.SparseAdam(table.parameters())
    for _ in range(3):
        (table(torch.tensor([5, 7]).cuda()).sum() + table(torch.tensor([7, 8, 9]).cuda()).sum()).backward()
        assert table.weight.grad.is_sparse and table.weight.grad._nnz() == 5
        assert table.weight.grad.coalesce()._nnz() == 4
        optimizer.step()
        optimizer.zero_grad()
    """
    assert allocations(traced(tmp_path, source)).count(4 * 10_000 * 16) == 3  # weights and two states, no gradient


def test_parts_whose_sizes_were_read_from_unknown_values_are_even(tmp_path):
    source = """
    import torch
    model = torch.nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        images = torch.randn(2, 17, 4).cuda()
        {before}
        parts = model(images.flatten(0, 1)).split({sizes})
        assert [len(part) for part in parts] == [17, 17]
        sum(part.sum() for part in parts).backward()
        optimizer.step()
    """
    read = "counts = (model(images) != 0).any(-1).sum(1).tolist()"
    job = (
        "import torch\nmodel = torch.nn.Linear(4, 4).cuda()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    )
    trace = traced(tmp_path, job + textwrap.dedent(source.format(before=read, sizes="counts")))
    assert any("was split evenly" in warning for warning in trace.warnings)
    with failing("raised", "split_with_sizes"):
        traced(tmp_path, job + textwrap.dedent(source.format(before="", sizes="[3, 4]")))


def test_models_of_a_repository_that_is_not_here_are_an_empty_list(tmp_path):
    source = """
    import torch.hub
    assert torch.hub.list("facebookresearch/nothing:main") == []
    """
    assert any("facebookresearch/nothing" in warning for warning in trained(tmp_path, source).warnings)


@pytest.mark.skipif(importlib.util.find_spec("tiktoken") is None, reason="needs tiktoken")
@pytest.mark.parametrize(
    ("name", "tokens"),
    [("p50k_edit", 50284), ("gpt2", 50257), ("p50k_base", 50281), ("cl100k_base", 100277), ("o200k_base", 200019)],
)
def test_an_encoding_that_is_not_here_has_as_many_tokens(tmp_path, name, tokens):
    source = f"""
    import tiktoken
    encoding = tiktoken.get_encoding("{name}")
    assert encoding.n_vocab == {tokens} and encoding.eot_token in range(50256, {tokens})
    assert encoding.decode(encoding.encode("two words é")) == "two words é"
    assert encoding.decode([{tokens} - 2, 300])
    """
    trace = trained(tmp_path, source, env={"TIKTOKEN_CACHE_DIR": str(tmp_path)})
    assert any(f"`{name}`" in warning for warning in trace.warnings)


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        pytest.param("import helper_of_repo", "src/helper_of_repo` has it: install that", id="own package"),
        pytest.param("import nobody_has_this", "name the job's Python with `--python`", id="no package"),
        pytest.param("from torch.nn import Lineaar", "is installed: is the script for another version", id="name"),
        pytest.param("torch.nn.functional.gone(1)", "is installed: is the script for another version", id="attribute"),
        pytest.param("model.gone()", "`--show-output`", id="own attribute"),
        pytest.param("raise ConnectionResetError(104, 'reset')", "a process that the script started", id="child"),
    ],
)
def test_errors_of_versions_and_packages_have_a_hint_that_fits(tmp_path, source, hint, monkeypatch):
    package = tmp_path / "src" / "helper_of_repo"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    with failing("import" if "import" in source else "raised") as caught:
        trained(tmp_path, source)
    assert hint in caught.value.hint


@pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="needs datasets")
def test_a_dict_of_synthetic_tables_renames_and_selects_columns(tmp_path):
    source = """
    import datasets
    tables = datasets.load_dataset("glue", "mrpc")
    tables = tables.rename_column("label", "labels").select_columns(["labels", "idx"]).remove_columns(["idx", "none"])
    assert tables["train"].column_names == ["labels"] and tables["train"].sort("labels")[0] == {"labels": 0}
    """
    trained(tmp_path, source, synthetic_data=["128:int64:28996"])


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")
def test_a_tokenizer_has_an_end_where_the_configuration_names_none(tmp_path):
    source = """
    from transformers import AutoTokenizer, Qwen2Config
    Qwen2Config(vocab_size=90, eos_token_id=None, bos_token_id=None).save_pretrained("model")
    tokenizer = AutoTokenizer.from_pretrained("model")
    assert tokenizer.convert_tokens_to_ids(tokenizer.pad_token or tokenizer.eos_token) == 88
    """
    trained(tmp_path, source)


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="needs torchvision")
def test_synthetic_images_have_a_standard_deviation(tmp_path):
    source = """
    from torchvision import datasets, transforms
    images = datasets.CIFAR10("gone", download=True, transform=transforms.ToTensor())
    deviation = torch.stack([images[0][0], images[1][0]]).std(dim=[0, 2, 3])
    transforms.Normalize([0, 0, 0], deviation.tolist())(images[0][0])
    """
    trained(tmp_path, source, synthetic_data=["3x32x32:uint8:10"])


def test_no_device_is_chosen_unless_the_script_chooses_one(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    source = """
    import ctypes, subprocess
    c_getenv = ctypes.CDLL(None).getenv
    c_getenv.restype = ctypes.c_char_p
    assert os.environ.get("CUDA_VISIBLE_DEVICES") is None and c_getenv(b"CUDA_VISIBLE_DEVICES") == b""
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0" and torch.cuda.device_count() == 1
    """
    trained(tmp_path, source)


def test_open_has_the_type_of_a_built_in_function(tmp_path):
    source = """
    import builtins, inspect
    assert type(open) is type(print) and inspect.signature(open).parameters["mode"].default == "r"
    def shout(*words, clean=False, **options):
        original(*words, **options)
    original = builtins.print
    if type(original) == type(open):
        builtins.print = shout
    print("words", clean=True)
    with open("made.txt", mode="w") as file:
        file.write("text")
    try:
        open("gone.txt")
    except FileNotFoundError as error:
        assert "gone.txt" in str(error)
    """
    trained(tmp_path, source)
    trained(tmp_path, source, synthetic_data=["3x8x8"])


@pytest.mark.parametrize(
    "init", ["nn.init.trunc_normal_(x, std=0.02)", "nn.init.trunc_normal_(x, a=1.0)", "nn.init.orthogonal_(x)"]
)
def test_initializations_of_large_cpu_tensors_test_no_values(tmp_path, init):
    source = f"""
    from torch import nn
    x, kept = torch.full((300, 300), 9.0), torch.full((300, 300), 9.0)
    assert {init} is x and torch.equal(x, kept)
    x = torch.full((30, 30), 9.0)
    assert {init} is x and not (x == 9).any() and x.erfinv_() is x
    """
    trained(tmp_path, source)


def test_what_a_cpu_model_computes_with_undrawn_weights_is_a_number(tmp_path):
    source = """
    from torch import nn
    weight = torch.full((300, 300), float("nan"))
    assert not nn.init.uniform_(weight).isnan().any() and weight.norm() > 0
    """
    trained(tmp_path, source)


def test_samples_that_a_collate_function_changes_are_samples_of_their_own(tmp_path):
    source = """
    from torch.utils.data import DataLoader
    def crop(samples):
        for sample in samples:
            sample["x"] = sample["x"][:3].t()
        return torch.stack([sample.pop("x") for sample in samples])
    loader = DataLoader([{"x": torch.zeros(5, 4)} for _ in range(64)], batch_size=16, collate_fn=crop)
    for batch in loader:
        assert batch.shape == (16, 4, 3), batch.shape
        optimizer.zero_grad()
        model(batch.permute(0, 2, 1).cuda()).sum().backward()
        optimizer.step()
    """
    traced(tmp_path, TRAINING + textwrap.dedent(source))


def test_a_shell_script_is_estimated_as_the_command_that_it_runs(tmp_path):
    (tmp_path / "sub").mkdir()
    lines = (
        "import os, sys, torch", "assert sys.argv[1:] == ['--size', '8'] and os.environ['SIZE'] == '8'",
        "model = torch.nn.Linear(8, 8).cuda()", "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
        "for _ in range(4):", "    model(torch.zeros(2, 8, device='cuda')).sum().backward()", "    optimizer.step()",
    )  # fmt: skip
    (tmp_path / "sub" / "train.py").write_text("\n".join(lines))
    settings = "export SIZE=$1\nexport PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
    (tmp_path / "train.sh").write_text(settings + 'cd sub\nshift\npython3 train.py "$@"\n')
    command = ("OMP_NUM_THREADS=1", "bash", "train.sh", "8", "--size", "8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"
    request = EstimateRequest(command=command, workdir=str(tmp_path), gpu="A100-40GB", env={"PATH": path})
    result = TracedEstimator().explain(request)
    assert result.estimate.peak_reserved_bytes > 0
    assert result.replay_input.stack.options.expandable_segments


WEIGHTS = """
import torch
from torchvision.models import resnet18, vgg11
model = resnet18(weights="IMAGENET1K_V1").cuda()
state = torch.hub.load_state_dict_from_url("https://nowhere.example/other.pth")
state.pop("fc.weight", None)
assert model.load_state_dict(state).missing_keys == []
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.zeros(2, 3, 32, 32).cuda()).sum().backward()
    optimizer.step()
"""


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="needs torchvision")
def test_missing_weights_are_replaced_by_initial_ones(tmp_path):
    trace = traced(tmp_path, WEIGHTS)
    assert [warning.split("`")[1] for warning in trace.warnings] == ["resnet18-f37072fd.pth", "other.pth"]
    assert all(
        warning.endswith("are not on this machine: the model keeps its initial ones") for warning in trace.warnings
    )
