"""Tasks of a real Ray share a GPU as their estimates allow."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ray_clusters
from cotenant.core.units import GiB

ray = pytest.importorskip("ray", reason=ray_clusters.MISSING)
TIMEOUT_S = 120
ROOT = Path(__file__).parents[2]

TRAIN = """import torch
model = torch.nn.Sequential(*(torch.nn.Linear(16384, 16384) for _ in range(3))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 16384, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def cluster():
    gpus = {"num_cpus": 8, "num_gpus": 1, "resources": {"accelerator_type:A100": 1}}
    with ray_clusters.ray_cluster(gpus) as cluster:
        yield cluster


def test_as_many_tasks_share_a_gpu_as_the_estimate_allows(cluster, tmp_path):
    pytest.importorskip("torch", reason="tracing needs torch")
    import cotenant.ray

    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    wanted = cotenant.ray.options(script)
    # 3 GiB of parameters, three times, a context and a margin, of 40 GiB: three fit, four do not.
    assert 9 * GiB < wanted["num_gpus"] * 40 * GiB < 40 / 3 * GiB

    @ray.remote(num_cpus=1)
    def task(number):
        import os
        from pathlib import Path

        folder = Path(tmp_path)
        over = len(list(folder.glob("over-*")))
        (folder / f"here-{number}").touch()
        give_up_s = time.monotonic() + TIMEOUT_S
        while len(list(folder.glob("here-*"))) < 3 and time.monotonic() < give_up_s:
            time.sleep(0.02)
        time.sleep(0.5)  # a fourth that could start would be here by now
        here = len(list(folder.glob("here-*"))) - len(list(folder.glob("over-*")))
        (folder / f"over-{number}").touch()
        return os.environ["CUDA_VISIBLE_DEVICES"], over, here

    found = ray.get([task.options(**wanted).remote(number) for number in range(4)], timeout=TIMEOUT_S)
    assert {gpu for gpu, _, _ in found} == {"0"}
    assert sum(over == 0 for _, over, _ in found) == 3
    assert max(here for _, _, here in found) == 3


def test_what_fills_more_than_half_a_gpu_is_alone_there(cluster):
    import cotenant.ray

    class Holder:  # here: what Ray pickles by name it would import
        def gpu(self):
            return ray.get_gpu_ids()

    wanted = cotenant.ray.options("train.py", memory="21G")
    actors = [ray.remote(Holder).options(**wanted, num_cpus=0).remote() for _ in range(2)]
    calls = {actor.gpu.remote(): actor for actor in actors}
    (first,), (second,) = ray.wait(list(calls), timeout=TIMEOUT_S)
    assert ray.wait([second], timeout=1)[0] == []
    ray.kill(calls[first])  # which makes room
    assert ray.get(second, timeout=TIMEOUT_S) == [0]
    ray.kill(calls[second])


def test_the_documented_program_prints_what_the_page_shows(cluster, tmp_path):
    pytest.importorskip("torch", reason="tracing needs torch")
    page = (ROOT / "docs" / "how-to" / "use-with-ray.md").read_text()
    program = re.search(r'^```python title="sweep.py"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL)[1]
    shown = re.search(r"^```console\n\$ python sweep.py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1]
    training = re.search(r"^    subprocess.run.*$", program, re.MULTILINE)[0]
    (tmp_path / "sweep.py").write_text(program.replace(training, "    open(SCRIPT).close()  # there is no GPU"))
    shutil.copy(ROOT / "examples" / "mlp.py", tmp_path)
    done = subprocess.run(
        [sys.executable, "sweep.py"],
        cwd=tmp_path,
        env={**os.environ, "RAY_ADDRESS": cluster.address},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    pattern = re.escape(shown).replace(r"\.\.\.", r"\d+")
    assert re.fullmatch(pattern, done.stdout), done.stdout
