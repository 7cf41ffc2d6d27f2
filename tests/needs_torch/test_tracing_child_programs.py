"""Programs that a script starts: children that train, other ranks of it, and those that do not train."""

from __future__ import annotations

import sys
import textwrap

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from traced_scripts import by_category, failing, traced

TRAIN = """
import torch
from torch import nn

model = nn.Linear(64, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    for _ in range(5):
        model(torch.zeros(4, 64).cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
WEIGHTS = 4 * (64 * 8 + 8)


def trained(folder, source):
    trace = traced(folder, TRAIN + textwrap.dedent(source))
    assert by_category(trace)["parameter"] == WEIGHTS
    return trace


@pytest.mark.parametrize(
    "start",
    [
        pytest.param("subprocess.run([sys.executable, 'child.py', '--n', '7'], check=True, cwd='sub')", id="run"),
        pytest.param("os.system('cd_=1 python sub/child.py --n 7') and 1/0", id="system"),
        pytest.param(
            "subprocess.check_call(['torchrun', '--nproc_per_node=2', 'sub/child.py', '--n', '7'])", id="launcher"
        ),
        pytest.param("subprocess.check_call('python -m sub.child --n 7', shell=True)", id="module"),
        pytest.param("os.execvp(sys.executable, ['python', 'sub/child.py', '--n', '7'])", id="exec"),
        pytest.param("os.execle(sys.executable, *'python sub/child.py --n 7'.split(), {})", id="exec env"),
    ],
)
def test_a_child_that_trains_is_traced(tmp_path, start):
    (tmp_path / "sub").mkdir()
    child = TRAIN + "import sys\nassert __name__ == '__main__' and sys.argv[1:] == ['--n', '7']\ntrain()\n"
    (tmp_path / "sub" / "child.py").write_text(child)
    trace = traced(tmp_path, f"import os, subprocess, sys\nassert not os.system('exit 0')\n{start}\nexit(1)\n")
    assert by_category(trace)["parameter"] == WEIGHTS
    assert (trace.header.processes or 1) == (2 if "torchrun" in start else 1)


@pytest.mark.parametrize(
    "imports", ["from models.steps import train", "import models.steps as steps\ntrain = steps.train"]
)
def test_a_child_whose_own_modules_train_is_traced(tmp_path, imports):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "steps.py").write_text("from net import train\n")
    (tmp_path / "net.py").write_text(TRAIN)
    (tmp_path / "child.py").write_text(f"{imports}\ntrain()\n")
    trace = traced(tmp_path, "import os\nos.system('python child.py \\\n  --n 7')\n")
    assert by_category(trace)["parameter"] == WEIGHTS


@pytest.mark.parametrize(
    "start",
    [
        pytest.param("assert not os.system('mkdir -p runs/a')", id="system"),
        pytest.param("subprocess.check_call(['mkdir', '-p', 'runs/a'])", id="words"),
        pytest.param("subprocess.run('mkdir a', shell=True, check=True, cwd='sub')", id="folder"),
    ],
)
def test_folders_that_a_program_makes_are_there(tmp_path, start):
    (tmp_path / "sub").mkdir()
    folder = "sub" if "sub'" in start else "runs"
    trained(tmp_path, f"import os, subprocess\n{start}\nos.mkdir('{folder}/a/log')\ntrain()\n")
    assert not (tmp_path / "runs").exists()
    assert not list((tmp_path / "sub").iterdir())


@pytest.mark.parametrize(
    ("command", "made"),
    [
        pytest.param("cat one.txt two.txt > lists/both.txt", "both.txt", id="cat"),
        pytest.param("cp -r *.txt lists/", "two.txt", id="cp"),
        pytest.param("cp -r sub lists", "sub/three.txt", id="a folder"),
        pytest.param("touch lists/new.txt", "new.txt", id="touch"),
    ],
)
def test_files_that_a_command_makes_are_there(tmp_path, command, made):
    (tmp_path / "sub").mkdir()
    for name in ("one.txt", "two.txt", "sub/three.txt"):
        (tmp_path / name).write_text(name)
    source = f"import os\nos.mkdir('lists')\nassert not os.system('{command}')\nprint(open('lists/{made}').read())\n"
    trained(tmp_path, f"{source}assert os.system('cp gone.txt lists') == os.system('cp one.txt') == 256\ntrain()\n")
    assert not (tmp_path / "lists").exists()


def test_a_missing_file_of_a_program_is_not_a_missing_program(tmp_path):
    (tmp_path / "train").write_text(f"#!{sys.executable}\nimport torch\nopen('gone.txt')\n")
    (tmp_path / "train").chmod(0o755)
    source = "import os\nos.environ['PATH'] = os.getcwd() + ':/bin'\nos.execvp('train', ['train'])\n"
    with failing("raised", "gone.txt"):
        traced(tmp_path, source)


def test_other_ranks_that_a_script_starts_do_not_run_here(tmp_path):
    source = """
    import os, subprocess, sys
    import torch.distributed as dist
    assert int(os.environ.get("LOCAL_RANK", 0)) == 0, "a second rank"
    os.environ.update(WORLD_SIZE="3", LOCAL_RANK="0")
    for rank in "12":
        child = subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "LOCAL_RANK": rank})
        assert child.wait() == 0 and os.system(f"RANK={rank} {sys.executable} {sys.argv[0]}") == 0
    dist.init_process_group("nccl")
    dist.new_group(backend="gloo").monitored_barrier()
    train()
    """
    assert trained(tmp_path, source).header.processes == 3


def test_rank_0_that_a_launcher_starts_is_traced(tmp_path):
    child = "import os\nassert os.environ['RANK'] == '0'\ntrain()\n"
    (tmp_path / "child.py").write_text(TRAIN + child)
    source = """
    import os, subprocess, sys
    for rank in "01":
        subprocess.run([sys.executable, "child.py"], env={**os.environ, "WORLD_SIZE": "2", "RANK": rank}, check=True)
    """
    assert by_category(traced(tmp_path, source))["parameter"] == WEIGHTS


def test_a_child_that_does_not_train_ends_with_its_exit_code(tmp_path):
    (tmp_path / "prepare.py").write_text("import torch, sys\nsys.exit(3)\n")
    source = """
    import subprocess, sys
    assert subprocess.run([sys.executable, "prepare.py"]).returncode == 3
    assert subprocess.call("exit 4", shell=True) == 4 and sys.argv[0].endswith("train.py")
    train()
    """
    trained(tmp_path, source)


def test_the_error_of_a_child_is_the_error(tmp_path):
    (tmp_path / "child.py").write_text("import torch\n{}['gone']\n")
    with failing("raised", "KeyError: 'gone' (child.py, line 2)"):
        trained(tmp_path, "import subprocess, sys\nsubprocess.run([sys.executable, 'child.py'])\n")


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        pytest.param("capture_output=True", "done.stdout.decode(), done.stderr.decode()", id="bytes"),
        pytest.param("capture_output=True, text=True", "done.stdout, done.stderr", id="text"),
        pytest.param("stdout=subprocess.PIPE, encoding='utf-8'", "done.stdout, done.stderr or ''", id="encoding"),
    ],
)
def test_a_script_reads_what_its_child_prints(tmp_path, options, answer):
    (tmp_path / "gpus.py").write_text("import torch\nprint(torch.cuda.device_count())\n")
    trained(
        tmp_path,
        f"""
        import subprocess, sys
        done = subprocess.run([sys.executable, "-m", "gpus"], {options})
        assert ({answer}) == ("1\\n", "")
        train()
        """,
    )
