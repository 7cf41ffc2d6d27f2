"""The inventory of patches, against the torch that is installed."""

from __future__ import annotations

import importlib
import multiprocessing
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.patches import catalog  # noqa: E402
from cotenant.tracing.patches.registry import HookPatch, KernelPatch, Patch, PatchTable  # noqa: E402

FOLDER = Path(torch.__file__).parent.parent


@pytest.fixture(scope="module")
def rows():
    return catalog.list_patches()


WITHOUT_TENSORBOARD = "without TensorBoard"


def test_every_target_exists_in_this_torch_or_is_declared_missing(rows):
    needed = [row for row in rows if row.target.startswith("torch.") and row.missing != WITHOUT_TENSORBOARD]
    for module in {row.target.partition(":")[0] for row in needed}:
        importlib.import_module(module)
    rows = [row for row in catalog.list_patches() if row.missing != WITHOUT_TENSORBOARD]
    assert [row.target for row in rows if row.is_present is None and row.target.startswith("torch.")] == []
    absent = {row.target for row in rows if row.is_present is False and not row.missing}
    created = {entry.target for entry in entries() if isinstance(entry, Patch) and entry.create}
    assert absent - created == set()


def entries():
    return catalog.all_patches(catalog._unattached_context())


def test_every_kernel_is_for_an_operator_of_this_torch():
    kernels = [entry for entry in entries() if isinstance(entry, KernelPatch)]
    assert len(kernels) > 10
    for kernel in kernels:
        assert torch._C._dispatch_find_schema_or_throw(kernel.target.partition(".")[0], kernel.target.partition(".")[2])


def test_every_patch_has_a_reason_and_those_of_torch_a_source_that_exists(rows):
    assert len(rows) > 200
    assert [row.target for row in rows if not row.reason.endswith(".")] == []
    of_torch = [row for row in rows if row.target.startswith(("torch", "aten::"))]
    assert [row.target for row in of_torch if not row.source and row.target != "torch:load"] == []
    files = {name.split(",")[0] for row in of_torch for name in row.source.split("; ")}
    python = sorted(name for name in files if name.startswith("torch/") and name.endswith(".py"))
    assert len(python) > 20
    assert [name for name in python if not (FOLDER / name).is_file()] == []


def test_functions_that_sources_name_exist(rows):
    for row in rows:
        name, _, function = row.source.partition(", `")
        path = FOLDER / name
        if name.startswith("torch/") and name.endswith(".py") and function:
            assert function.strip("`").split(".")[-1] in path.read_text(), row.source


def test_listing_patches_applies_none():
    before = torch.cuda.is_available, torch.save, torch.nn.Module._apply
    catalog.list_patches()
    assert (torch.cuda.is_available, torch.save, torch.nn.Module._apply) == before


def apply_and_undo(queue):
    """What differs after applying, and after undoing, in the attributes of everything that is patched."""
    table = PatchTable(
        entry for entry in entries() if not (isinstance(entry, HookPatch) and entry.target == "torch._C")
    )

    def state():
        found = {}
        for entry in table:
            if isinstance(entry, Patch) and entry.module in sys.modules:
                owner, path = sys.modules[entry.module], entry.target.partition(":")[2].split(".")
                for part in path[:-1]:
                    owner = getattr(owner, part, None)
                found[entry.target] = vars(owner).get(path[-1], "absent") if owner is not None else "absent"
        return found

    before = state()
    table.apply()
    during = state()
    table.undo()
    after = state()
    queue.put(
        (
            sum(during[target] is not value for target, value in before.items()),
            [target for target, value in before.items() if after[target] is not value],
        )
    )


def test_undoing_restores_every_attribute():
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=apply_and_undo, args=(queue,))
    process.start()
    changed, left = queue.get(timeout=60)
    process.join()
    assert left == []
    assert changed > 150


@pytest.mark.parametrize("target", ["evaluate.loading:load", "huggingface_hub:model_info", "cv2:VideoCapture"])
def test_the_null_gpu_lacks_what_a_trace_lacks(target):
    assert target in {entry.target for entry in catalog.absence_patches(catalog._unattached_context())}
