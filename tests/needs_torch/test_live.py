"""Unmodified scripts on the GPUs of a simulated server: their memory, their out-of-memory errors, their activity."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import cotenant
from cotenant.simserver.server import SimulatedServer

pytest.importorskip("torch")

MIB = 2**20
SITE = Path(cotenant.__file__).parent / "simserver" / "torch" / "site"
TIMEOUT_S = 120

TRAIN = """
    import sys
    import torch

    rows = int(sys.argv[1])
    device = sys.argv[2] if len(sys.argv) > 2 else "cuda"
    model = torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 8)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(4):
        loss = model(torch.randn(rows, 4096, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    index = torch.device(device).index or 0
    print(torch.cuda.get_device_name(index), torch.cuda.device_count())
    print(torch.cuda.memory_allocated(index), torch.cuda.max_memory_reserved(index), *torch.cuda.mem_get_info(index))
"""


@pytest.fixture
def server(tmp_path):
    return SimulatedServer.create(tmp_path / "server", "2xT4-16GB", time_scale=60)


@pytest.fixture
def run(server, tmp_path):
    """Run a script as a job of the server on its GPUs."""

    def run(script, *args, gpus=(0,), **env):
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(script))
        child_env = {
            **os.environ,
            "PYTHONPATH": str(SITE),
            "COTENANT_SIM_SERVER": str(server.folder),
            "CUDA_VISIBLE_DEVICES": ",".join(server.uuids[gpu] for gpu in gpus),
            **env,
        }
        command = [sys.executable, str(path), *map(str, args)]
        return subprocess.run(command, env=child_env, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)

    return run


def test_a_script_fills_the_gpu_as_torch_would(run, server):
    done = run(TRAIN, 1024)
    assert done.returncode == 0, done.stderr
    name, numbers = done.stdout.splitlines()
    assert name == "Tesla T4 1"
    allocated, reserved, free, _ = map(int, numbers.split())
    weights = 4 * (4096 * 4096 + 4096 + 8 * 4096 + 8)
    workspaces = 2 * 8519680
    assert 4 * weights <= allocated <= 4 * weights + workspaces + MIB
    assert reserved % (2 * MIB) == 0
    assert reserved >= allocated
    gpu = server.gpu(0)
    assert gpu.free_bytes == gpu.total_bytes  # all given back
    assert free <= gpu.total_bytes - reserved


def test_a_full_gpu_ends_the_script_with_torchs_own_error(run):
    done = run(TRAIN, 2_000_000)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 30.52 GiB. GPU 0 has a total")
    assert "During handling" not in done.stderr


def test_a_neighbor_that_holds_the_memory_causes_an_oom(run, server):
    partner = server.attach(server.uuids[0], context_bytes=0)
    partner.allocate(server.gpu(0).free_bytes - 400 * MIB)
    done = run(TRAIN, 1024)
    assert done.returncode == 1
    assert f"Process {os.getpid()} has" in done.stderr


def test_catching_an_oom_frees_the_locals_of_the_script(run):
    done = run(
        """
        import torch

        def grow(size):
            held = torch.empty(2**30, dtype=torch.uint8, device="cuda")
            return torch.empty(size, dtype=torch.uint8, device="cuda"), held

        try:
            grow(2**40)
        except torch.cuda.OutOfMemoryError:
            pass
        print(torch.cuda.memory_allocated(), torch.cuda.memory_reserved())
        torch.cuda.empty_cache()
        print(torch.cuda.memory_reserved())
        """
    )
    assert done.stdout.splitlines() == [f"0 {2**30}", "0"], done.stderr


def test_a_script_can_use_the_second_gpu(run, server):
    done = run(TRAIN, 64, "cuda:1", gpus=(0, 1))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Tesla T4 2\n")
    assert len(server.gpu(0).changes) == 1  # nobody was ever active there
    assert len(server.gpu(1).changes) > 1


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("import torch; raise SystemExit(7)", 7),
        ("import torch; 1 / 0", 1),
        ("import torch; print(torch.ones(2).sum())", 0),
    ],
)
def test_exit_code_is_the_scripts(run, script, code):
    assert run(script).returncode == code


def test_a_script_has_the_activity_and_pace_of_its_settings(run, server):
    began_s = server.now_s()
    done = run(TRAIN, 16, COTENANT_SIM_STEP_S="20", COTENANT_SIM_SMACT="0.7")
    assert done.returncode == 0, done.stderr
    assert server.now_s() - began_s >= 3 * 20
    active = [smact for change in server.gpu(0).changes for _, _, smact in change.active]
    assert active == [0.7]


def test_an_invalid_setting_ends_the_job(run):
    done = run(TRAIN, 16, COTENANT_SIM_SMACT="70")
    assert done.returncode == 2
    assert "COTENANT_SIM_SMACT is `70`, must be from 0 to 1" in done.stderr


def test_users_own_sitecustomize_still_runs(run, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins; builtins.mine = 'kept'")
    done = run("print(mine)", PYTHONPATH=f"{SITE}{os.pathsep}{own}")
    assert done.stdout == "kept\n", done.stderr


def test_without_a_gpu_torch_stays_as_it_is(run):
    done = run("import torch; print(torch.cuda.is_available())", gpus=())
    assert done.stdout == "False\n", done.stderr
