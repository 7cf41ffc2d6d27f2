"""Notebooks are traced as their kernel would run them."""

from __future__ import annotations

import importlib.util
import json
import textwrap

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from traced_scripts import TRAINING, allocations, by_category, failing, trained
from traced_scripts import traced as traced_script

TRAIN = f"{TRAINING}\ntrain()"


def traced(folder, *cells, assignments=(), where=".", **options):
    sources = [textwrap.dedent(cell) if isinstance(cell, str) else cell for cell in cells]
    codes = [cell if isinstance(cell, dict) else {"source": cell} for cell in sources]
    path = folder / "train.ipynb"
    path.write_text(json.dumps({"nbformat": 4, "cells": [{"cell_type": "code", **code} for code in codes]}))
    program = {"kind": "notebook", "target": str(path), "args": list(assignments), "folder": str(folder / where)}
    return traced_script(folder, "", program=program, **options)


def test_cells_train_as_a_script_does(tmp_path):
    imports, training = TRAINING.split("model =", 1)
    notebook = traced(tmp_path, "%matplotlib inline", imports, f"%%time\nmodel ={training}", "!pip install x\ntrain();")
    assert notebook.events == trained(tmp_path, "").events


def test_the_last_value_of_a_cell_stays_in_memory(tmp_path):
    shown, hidden = "torch.zeros(1024, device='cuda')", "torch.zeros(1024, device='cuda');"
    kept = by_category(traced(tmp_path, TRAINING, shown, hidden, "assert Out[2] is _ and 3 not in Out", "train()"))
    none = by_category(traced(tmp_path, TRAINING, hidden, "train()"))
    assert sum(kept.values()) - sum(none.values()) == 4096


def test_the_namespace_is_that_of_a_kernel(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "settings.py").write_text("rate = 3")
    (tmp_path / "sub" / "more.py").write_text("import sys\nfrom_file = sys.argv[1:], len(known)")
    traced(
        tmp_path,
        """
        import dataclasses, inspect, os, pickle, settings
        assert __name__ == "__main__" and "__file__" not in globals()
        assert os.path.basename(os.getcwd()) == "sub" and settings.rate == 3
        known = [1, 2]
        @dataclasses.dataclass
        class Batch:
            size: int = 4
        def doubled(x): return 2 * x
        """,
        """
        assert inspect.getsource(doubled).startswith("def doubled")
        assert pickle.loads(pickle.dumps(Batch())) == Batch()
        %run more.py --flag {known[1]}
        assert from_file == (["--flag", "2"], 2)
        %env LEVEL=high
        assert os.environ["LEVEL"] == "high"
        %cd ..
        assert os.path.exists("train.ipynb")
        display(known)
        get_ipython().magic("cd sub")
        %timeit -n 10 known.append(3)
        assert os.path.exists("more.py") and known == [1, 2, 3]
        """,
        "%%writefile made.py\nsize = 7",
        "import made\nassert made.size == 7",
        {"source": "1 / 0", "metadata": {"tags": ["raises-exception"]}},
        TRAIN,
        where="sub",
    )


BATCH = "model(torch.ones(3000, 4, device='cuda'))"


@pytest.mark.parametrize(
    ("later", "steps"),
    [
        pytest.param([f"%%time\n{BATCH}"], 3, id="a model"),
        pytest.param(["def last():\n    train()\nlast()", BATCH], 4, id="another training"),
        pytest.param([f"def test():\n    {BATCH}", "for i in range(3):", BATCH], 3, id="no Python"),
    ],
)
def test_what_follows_in_later_cells_is_traced(tmp_path, later, steps):
    loop = "print('training')\nfor i in range(99):\n    train()"
    trace = traced(tmp_path, TRAINING.replace("range(4)", "range(1)"), loop, "print('between')", *later)
    has_run = 4 * 4 * 3000 in allocations(trace, "forward")
    assert (has_run, trace.header.steps, trace.partial) == ("for i in range(3):" not in later, steps, False)
    assert len(trace.warnings) == (not has_run)


def test_parameters_replace_those_of_the_tagged_cell(tmp_path):
    tagged = {"source": "rows, name = 1, 'a'", "metadata": {"tags": ["parameters"]}}
    traced(tmp_path, tagged, "assert (rows, name) == (3, 'a')", TRAIN, assignments=["rows = 3"])


def test_a_program_that_trains_is_traced(tmp_path):
    (tmp_path / "child.py").write_text(f"{TRAIN}\nassert sys.argv[1:] == ['--rows', '3']")
    trace = traced(tmp_path, "rows = 3\n!touch made; echo $rows\n!python child.py --rows {rows}")
    assert by_category(trace)["parameter"]
    assert not (tmp_path / "made").exists()


def test_what_notebooks_import_is_not_needed(tmp_path):
    if importlib.util.find_spec("IPython") is not None:
        pytest.skip("IPython is installed")
    source = """
    from google.colab import drive
    from IPython.display import clear_output
    from tqdm.notebook import tqdm, trange
    import IPython
    drive.mount("/content/drive")
    assert IPython.get_ipython() is None and [*tqdm([1]), *trange(2)] == [1, 0, 1]
    clear_output(wait=True)
    """
    packages = ("google", "google.colab", "IPython")
    traced(tmp_path, source, TRAIN, null_packages=packages)


def test_errors_name_the_cell_and_its_line(tmp_path):
    with failing("raised", "no data (train.ipynb cell 2, line 3)"):
        traced(tmp_path, "def load():\n    pass", "%cd .\nload()\nraise ValueError('no data')")
    with failing("import", "invalid syntax (train.ipynb cell 1, line 2)"):
        traced(tmp_path, "x = 1\nx = = 1")
