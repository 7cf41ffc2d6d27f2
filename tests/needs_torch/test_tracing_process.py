"""The tracing process: its environment, how it ends, and that it leaves no process or file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest

import cotenant
from apart import apart
from cotenant.core.errors import TraceError
from cotenant.core.ports import TraceOptions
from cotenant.tracing.process.program import Program
from cotenant.tracing.process.trace_script import trace_script
from running import is_running
from traced_scripts import A100, check_well_formed, failing

torch = pytest.importorskip("torch", reason="tracing needs torch")

PATIENCE_S = 200


def run(folder: Path, source: str, *args: str, python=sys.executable, timeout_s=PATIENCE_S, env=None, **options):
    (folder / "train.py").write_text(source)
    program = Program(python=python, kind="script", target="train.py", args=args)
    env = os.environ if env is None else env
    return trace_script(
        program, gpu=A100, workdir=str(folder), env=env, timeout_s=timeout_s, options=TraceOptions(**options)
    )


def gone(pid: int) -> bool:
    """Whether a process ends within the patience of the test."""
    deadline = time.monotonic() + PATIENCE_S
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_running(pid)


TRAIN = """
import os, sys, torch
from helper import WIDTH
assert os.environ["CUDA_VISIBLE_DEVICES"] == "0" and sys.argv[1:] == ["--lr", "1"] and __name__ == "__main__"
assert open("data.txt").read() == "here" and os.environ["MINE"] == "kept"
print("noise on stdout")
model = torch.nn.Linear(WIDTH, WIDTH).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[2]))
for _ in range(10):
    model(torch.randn(2, WIDTH).cuda()).sum().backward()
    optimizer.step()
    assert torch.cuda._initialized is False  # whatever `is_initialized()` says here
print("never reached")
"""


def test_a_script_runs_with_the_environment_of_python(tmp_path, capfd):
    (tmp_path / "helper.py").write_text("WIDTH = 8\n")
    (tmp_path / "data.txt").write_text("here")
    found = run(tmp_path, TRAIN, "--lr", "1", env={**os.environ, "MINE": "kept", "CUDA_VISIBLE_DEVICES": "3"})
    check_well_formed(found)
    assert found.header.steps == 3
    assert found.header.torch_version == torch.__version__
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("gpus", "is_warned"), [("7", False), ("3,5", True)])
def test_more_gpus_in_the_environment_than_the_script_finds_add_a_warning(tmp_path, gpus, is_warned):
    source = TRAIN.partition("assert open")[0] + TRAIN.partition('"kept"')[2]
    (tmp_path / "helper.py").write_text("WIDTH = 8\n")
    found = run(tmp_path, source, "--lr", "1", env={**os.environ, "CUDA_VISIBLE_DEVICES": gpus})
    assert ["names 2 GPUs, and the script found 1: give `--gpus 2`" in text for text in found.warnings] == [
        True
    ] * is_warned


def test_a_module_with_relative_imports_is_traced(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "sizes.py").write_text("WIDTH = 8\n")
    body = TRAIN.split("print(")[1].split("\n", 1)[1].replace("float(sys.argv[2])", "0.1")
    (package / "train.py").write_text("import sys, torch\nfrom .sizes import WIDTH\n" + body)
    program = Program(python=sys.executable, kind="module", target="package.train", args=())
    assert (
        trace_script(program, gpu=A100, workdir=str(tmp_path), env=os.environ, timeout_s=PATIENCE_S).header.steps == 3
    )


def test_a_timeout_leaves_no_process(tmp_path):
    source = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open("part", "w").write(f"{os.getpid()} {child.pid}")
os.rename("part", "pids")
time.sleep(600)
"""
    for timeout_s in (6.0, 120.0):  # again, if the machine was too busy to start the script in time
        with failing("timeout", f"{timeout_s}s"):
            run(tmp_path, source, timeout_s=timeout_s, sandbox=False)
        if (tmp_path / "pids").exists():
            break
    pids = [int(part) for part in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


def test_a_process_in_a_session_of_its_own_does_not_outlive_the_trace(tmp_path):
    source = """
import subprocess
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
open("pid", "w").write(str(child.pid))
raise SystemExit("started it")
"""
    with failing("raised", "started it"):
        run(tmp_path, source, sandbox=False)
    assert gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("{", id="cut"),
        pytest.param("[" * 100_000, id="nested"),
        pytest.param("[1]", id="a list"),
        pytest.param('{"trace": {"events": 7}}', id="a member of another type"),
        pytest.param('{"error": {"kind": "raised"}}', id="a member is missing"),
    ],
)
def test_an_answer_that_the_script_wrote_over_is_an_error(tmp_path, content):
    # `trace_script` names the answer as the last argument of the process.
    source = f"""
import os
answer = open("/proc/self/cmdline", "rb").read().split(bytes(1))[-2]
descriptor = os.open(answer, os.O_WRONLY | os.O_CREAT)
os.write(descriptor, {content!r}.encode())
os._exit(0)
"""
    with failing("crashed", "left an answer that cannot be read"):
        run(tmp_path, source, sandbox=False)


def test_the_tracing_process_dies_with_its_parent(tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, time\nopen('part', 'w').write(str(os.getpid()))\nos.rename('part', 'pid')\ntime.sleep(600)\n"
    )
    code = (
        "import os, sys\n"
        "from cotenant.core.ports import TraceOptions\n"
        "from cotenant.tracing.process.program import Program\n"
        "from cotenant.tracing.process.trace_script import trace_script\n"
        "trace_script(Program(python=sys.executable, kind='script', target='train.py', args=()),"
        f" gpu={A100!r}, workdir={str(tmp_path)!r}, env=os.environ, timeout_s=600,"
        " options=TraceOptions(sandbox=False))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        tracing = int((tmp_path / "pid").read_text())
        assert is_running(tracing)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert gone(tracing)
    finally:
        parent.kill()
        parent.wait()


WRITES = """
import glob, logging, os, shutil, subprocess, tempfile
from pathlib import Path
import torch
model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.Adam(model.parameters())
logging.basicConfig(filename="train.log", filemode="a")
with open("train.log", "a") as log:
    log.write("new\\n")
assert open("train.log").read() == "old\\nnew\\n"
os.makedirs("checkpoints/best")
for epoch in range(3):
    model(torch.ones(1, 4).cuda()).sum().backward()
    torch.save(model.state_dict(), f"checkpoints/{epoch}.pt")
    for stale in sorted(Path("checkpoints").glob("*.pt"))[:-1]:
        stale.unlink()
    torch.save({"epoch": epoch}, "part")
    os.replace("part", "last.pt")
assert sorted(os.listdir("checkpoints")) == ["2.pt", "best"] and torch.load("last.pt")["epoch"] == 2
shutil.rmtree("results")
assert not os.path.exists("results/old.txt") and "results" not in os.listdir()
os.remove("data.txt")
assert glob.glob("data*") == []
os.rename("keep.txt", "moved.txt")
assert Path("moved.txt").read_text() == "keep" and not Path("keep.txt").exists()
os.chdir("checkpoints")
Path("here").write_text("here")
os.chdir("..")
assert Path("checkpoints/here").exists() and os.getcwd() == os.environ["HERE"]
with tempfile.NamedTemporaryFile("w") as file:
    file.write("x")
assert subprocess.run("rm -f train.log; echo x > by_a_program", shell=True).returncode != 0
optimizer.step()
"""


def test_a_script_changes_no_file(tmp_path):
    work = tmp_path / "work"
    (work / "results").mkdir(parents=True)
    before = {"train.log": "old\n", "data.txt": "data", "keep.txt": "keep", "results/old.txt": "result"}
    for name, text in before.items():
        (work / name).write_text(text)
    found = run(work, WRITES.replace("\\\\", "\\"), env={**os.environ, "HERE": str(work)})
    assert (found.partial, found.warnings) == (False, ())
    after = {str(path.relative_to(work)): path.read_text() for path in work.rglob("*") if path.is_file()}
    assert after.pop("train.py")
    assert after == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminated_estimate_leaves_no_process_or_file(tmp_path, number):
    own = tmp_path / "own"
    own.mkdir()
    script = tmp_path / "script.py"
    script.write_text("import time\nprint('here', flush=True)\ntime.sleep(600)\n")
    command = [sys.executable, "-m", "cotenant", "estimate", "--show-output", "--no-cache", str(script)]
    usual = ["env", f"--default-signal={number.name}"]  # tests that run below `nohup` ignore SIGHUP
    with subprocess.Popen(
        [*usual, *command],
        env={**os.environ, "TMPDIR": str(own)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert any("here" in line for line in process.stderr)
        assert list(own.iterdir())
        process.send_signal(number)
        process.stderr.read()
        assert process.wait() == 128 + number
    assert list(own.iterdir()) == []


def test_files_are_written_if_writes_are_allowed(tmp_path):
    body = "open('by_hand', 'w').write('x')\ntorch.save(torch.ones(1, device='cuda'), 'by_torch')\n"
    body = "import torch\n" + body + "assert torch.load('by_torch').is_cuda\nraise SystemExit('done')\n"
    with failing("raised", "done"):
        run(tmp_path, body, sandbox=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["by_hand", "train.py"]


def test_network_access_is_refused_with_the_line(tmp_path):
    source = "import urllib.request\n\nurllib.request.urlopen('http://example.com/weights.pt')\n"
    with failing("raised", "`example.com` is out of reach") as caught:
        run(tmp_path, source)
    assert "train.py, line 3" in str(caught.value)
    assert "--allow-network" in str(caught.value)


def test_an_interpreter_without_torch_is_an_error(tmp_path):
    venv.create(tmp_path / "bare", with_pip=False)
    with failing("missing-torch", "cannot import torch"):
        run(tmp_path, "", python=str(tmp_path / "bare" / "bin" / "python"), env={})


def test_a_missing_interpreter_is_an_error(tmp_path):
    with failing("crashed", "cannot start `/no/python`"):
        run(tmp_path, "", python="/no/python")


def test_a_crash_is_reported_with_the_end_of_the_output(tmp_path):
    with pytest.raises(TraceError) as caught:
        run(tmp_path, "import os, sys\nprint('about to die', flush=True)\nos.kill(os.getpid(), 11)\n")
    assert caught.value.kind == "crashed"
    assert "signal 11" in str(caught.value)
    assert "about to die" in (caught.value.hint or "") + caught.value.log_tail


@pytest.mark.parametrize(
    ("null_gpu", "wanted"),
    [({"COTENANT_NULL_GPU": "name=A100"}, "addresses of the null GPU's memory"), (None, "about to die")],
)
def test_a_segmentation_fault_on_the_null_gpu_says_what_may_have_caused_it(tmp_path, null_gpu, wanted):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho about to die\nkill -SEGV $$\n")
    python.chmod(0o755)
    program = Program(python=str(python), kind="script", target="train.py", args=())
    with failing("crashed", "signal 11") as caught:
        trace_script(program, gpu=A100, workdir=str(tmp_path), env=os.environ, null_gpu=null_gpu)
    assert wanted in caught.value.hint


def test_the_log_ends_with_the_scripts_own_traceback(tmp_path):
    with pytest.raises(TraceError) as caught:
        run(tmp_path, "def load():\n    raise KeyError('images')\nload()\n")
    lines = caught.value.log_tail.strip().splitlines()
    assert lines[-1] == "KeyError: 'images'"
    assert "cotenant" not in caught.value.log_tail


def a_model():
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        model.to("cuda")
        optimizer.zero_grad()
        model(torch.randn(2, 16, device="cuda")).sum().backward()
        optimizer.step()

    return model, step


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_tracing_a_function_restores_the_process():
    model, step = a_model()
    before = torch.cuda.is_available()
    estimate = cotenant.estimate(step)
    assert estimate.peak_allocated_bytes >= 4 * 4 * (16 * 16 + 16)
    assert model.weight.device.type == "cpu"
    assert torch.cuda.is_available() == before
    assert not torch.cuda.is_initialized()


@apart
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_function_can_be_traced_after_training_in_the_same_process():
    torch.nn.Linear(4, 4)(torch.ones(2, 4)).sum().backward()  # autograd counts GPUs now, and none is there
    _, step = a_model()
    assert cotenant.estimate(step).peak_allocated_bytes >= 4 * 4 * (16 * 16 + 16)
    assert cotenant.estimate(step).warnings == ()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_function_without_a_step_is_an_error():
    with failing("timeout"):
        cotenant.estimate(lambda: time.sleep(600), timeout_s=3)


def test_what_hydra_would_print_before_it_exits_is_the_error(tmp_path):
    source = "import os, sys\nif os.environ.get('HYDRA_FULL_ERROR', '0') == '0':\n    sys.exit(1)\nopen('shapes.txt')\n"
    with failing("raised", "shapes.txt"):
        run(tmp_path, source)
    with failing("raised", "exit code 1"):
        run(tmp_path, source, env={**os.environ, "HYDRA_FULL_ERROR": "0"})


def test_a_tracker_that_would_log_in_is_off(tmp_path):
    """As swanlab, which a script gets with `log_with="all"` of accelerate where it is installed."""
    source = "import os\nif os.environ.get('SWANLAB_MODE') != 'disabled':\n    input('key: ')\nopen('shapes.txt')\n"
    with failing("raised", "shapes.txt"):
        run(tmp_path, source)


def test_the_last_words_of_a_script_without_a_gpu_are_in_the_hint(tmp_path):
    with pytest.raises(TraceError) as caught:
        run(tmp_path, "import torch\nprint('run create_data.py first')\n")
    assert caught.value.kind == "no-cuda"
    assert caught.value.hint.endswith("cuda`? the last line of its output: run create_data.py first")


def test_a_folder_that_the_script_made_has_a_file_system(tmp_path):
    source = "import os, torch\nos.makedirs('made')\nprint(os.statvfs('made').f_namemax > 0)\n"
    with pytest.raises(TraceError) as caught:
        run(tmp_path, source)
    assert caught.value.hint.endswith(": True")


def test_a_tracing_process_that_the_kernel_ends_was_perhaps_too_large(tmp_path):
    source = "import os, signal, torch\nprint('large', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    with pytest.raises(TraceError) as caught:
        run(tmp_path, source)
    assert "want of host memory? the largest process so far had " in caught.value.hint
    assert "the last line of its output: large" in caught.value.hint


def test_the_kernel_ends_the_tracing_process_before_others(tmp_path):
    source = "raise RuntimeError(open('/proc/self/oom_score_adj').read())"
    with failing("raised", "RuntimeError: 800"):
        run(tmp_path, source)


def test_a_script_that_never_ends_may_wait_for_a_file_that_was_made_up(tmp_path):
    source = (
        "import time, torch\ntorch.zeros(1).cuda()\ntorch.load('data/corpus.pt')\n"
        "until = time.monotonic() + 900\nwhile time.monotonic() < until:\n    pass\n"
    )
    with pytest.raises(TraceError) as caught:
        run(tmp_path, source, timeout_s=8, synthetic_data=["8:int64:50"])
    assert caught.value.hint.startswith("`data/corpus.pt` had to be made up: does the script wait for more of it?")
