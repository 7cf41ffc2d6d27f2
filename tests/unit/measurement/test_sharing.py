"""Ways to share a GPU, set up and undone, with a fake `nvidia-smi` and a fake driver."""

import os
import sys
from pathlib import Path

import pytest

from cotenant.core.errors import BackendError, CotenantError
from cotenant.core.gpu import Gpu, GpuProcess, GpuSample
from cotenant.gpus.gpu_sampler import GpuSampler
from cotenant.measurement.campaign import CampaignSetup
from cotenant.measurement.job_list import JobGroup
from cotenant.measurement.sharing import check_idle, mig_instances, open_sharing
from fake_pynvml import FakeDriver, FakeGpu

GPU = Gpu(uuid="GPU-a", index=2, name="A100", memory_total_bytes=40 * 2**30)
A100 = "NVIDIA A100-SXM4-40GB"


class Idle:
    """A backend of one GPU with processes on it."""

    name = "fake"

    def __init__(self, *pids):
        self.pids = pids

    def inventory(self):
        return (GPU,)

    def sample(self, at_s):
        processes = tuple(GpuProcess(pid=pid, used_bytes=1) for pid in self.pids)
        return {GPU.uuid: GpuSample(at_s=at_s, processes=processes)}

    def close(self):
        pass


@pytest.fixture
def setup(tmp_path):
    def make(*pids):
        return CampaignSetup(out=tmp_path, python=sys.executable, watch=GpuSampler(Idle(*pids), GPU))

    return make


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """A `nvidia-smi` that records its calls, and fails for those that contain a word; gives the calls so far."""
    calls = tmp_path / "calls"
    calls.touch()

    def make(failing="never", instances=("3g.20gb", "2g.10gb")):
        program = tmp_path / "nvidia-smi"
        refusal = f'case "$*" in *"{failing}"*) echo "Insufficient Permissions" >&2; exit 4;; esac'
        program.write_text(f'#!/bin/sh\necho "$*" >> {calls}\n{refusal}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        mig = [
            FakeGpu(uuid=f"MIG-{name}", name=f"{A100} MIG {name}", gpu_instance_id=i)
            for i, name in enumerate(instances)
        ]
        monkeypatch.setitem(sys.modules, "pynvml", FakeDriver(FakeGpu(uuid="GPU-a", name=A100, mig=mig)))
        return lambda: calls.read_text().splitlines()

    return make


def test_mig_is_made_and_undone(smi):
    calls = smi()
    with mig_instances(GPU, ["2g.10gb", "3g.20gb"]) as uuids:
        assert uuids == ["MIG-2g.10gb", "MIG-3g.20gb"]
        assert calls() == ["-i 2 -mig 1", "mig -i 2 -cgi 2g.10gb,3g.20gb -C"]
    assert calls()[2:] == ["mig -i 2 -dci", "mig -i 2 -dgi", "-i 2 -mig 0"]


def test_compute_instances_share_one_gpu_instance(smi):
    calls = smi(instances=("3c.7g.40gb", "3c.7g.40gb-2"))
    with pytest.raises(BackendError, match="lists no instance"), mig_instances(GPU, ["3c.7g.40gb", "3c.7g.40gb"]):
        pytest.fail("the fake has one instance of that profile")
    made = ["-i 2 -mig 1", "mig -i 2 -cgi 7g.40gb", "mig -i 2 -cci 3c.7g.40gb,3c.7g.40gb"]
    assert calls() == [*made, "mig -i 2 -dci", "mig -i 2 -dgi", "-i 2 -mig 0"]


def test_mig_is_undone_where_the_run_fails(smi):
    calls = smi()
    with pytest.raises(KeyboardInterrupt), mig_instances(GPU, ["3g.20gb"]):
        raise KeyboardInterrupt
    assert calls()[-1] == "-i 2 -mig 0"


@pytest.mark.parametrize(
    ("failing", "made"),
    [
        ("-mig 1", ["-i 2 -mig 1"]),
        (
            "-cgi",
            ["-i 2 -mig 1", "mig -i 2 -cgi 3g.20gb -C", "mig -i 2 -dci", "mig -i 2 -dgi", "-i 2 -mig 0"],
        ),
    ],
)
def test_mig_without_rights_leaves_the_mode_as_it_was(smi, failing, made):
    calls = smi(failing)
    with pytest.raises(BackendError, match="Insufficient Permissions"), mig_instances(GPU, ["3g.20gb"]):
        pytest.fail("no instance")
    assert calls() == made


def test_an_instance_that_nvml_does_not_list_is_an_error_and_undone(smi):
    calls = smi()
    with pytest.raises(BackendError, match=r"lists no instance `1g\.5gb`"), mig_instances(GPU, ["1g.5gb"]):
        pytest.fail("no instance")
    assert calls()[-1] == "-i 2 -mig 0"


def test_jobs_share_instances_in_turn(smi, setup):
    smi()
    with open_sharing(JobGroup(jobs=("a", "b", "c"), sharing="mig:3g.20gb,2g.10gb"), setup()) as environments:
        visible = [env["CUDA_VISIBLE_DEVICES"] for env in environments]
    assert visible == ["MIG-3g.20gb", "MIG-2g.10gb", "MIG-3g.20gb"]


def test_mps_limits_each_job_and_ends_its_server(tmp_path, monkeypatch, setup):
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text(f'#!/bin/sh\n[ "$1" = -d ] || cat >> {tmp_path}/input\necho "$*" >> {tmp_path}/starts\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with open_sharing(JobGroup(jobs=("a", "b"), sharing="mps:30"), setup()) as environments:
        assert [env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] for env in environments] == ["30", "30"]
        assert environments[0]["CUDA_MPS_PIPE_DIRECTORY"].startswith(str(tmp_path))
    assert (tmp_path / "input").read_text() == "quit\n"
    with open_sharing(JobGroup(jobs=("a", "b"), sharing="mps"), setup()) as environments:
        assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in environments[0]


def test_jobs_without_mps_are_no_clients_of_a_server_that_runs(setup):
    with open_sharing(JobGroup(jobs=("a", "b")), setup()) as environments:
        folders = {env["CUDA_MPS_PIPE_DIRECTORY"] for env in environments}
    assert [Path(folder).exists() for folder in folders] == [False], "no server listens there"


def test_an_mps_server_that_a_killed_study_left_is_ended(tmp_path, monkeypatch, setup):
    program = tmp_path / "nvidia-cuda-mps-control"
    left = tmp_path / "left"
    left.touch()
    program.write_text(
        f"""#!/bin/sh
if [ "$1" = -d ]; then
  if [ -e {left} ]; then echo "An instance of this daemon is already running"; exit 1; fi
  exit 0
fi
read line && [ "$line" = quit ] && rm -f {left}
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with open_sharing(JobGroup(jobs=("a", "b"), sharing="mps"), setup()) as environments:
        assert len(environments) == 2
    program.write_text('#!/bin/sh\n[ "$1" = -d ] && echo "An instance of this daemon is already running" && exit 1\n')
    with (
        pytest.raises(CotenantError, match="exit code 1: An instance of this daemon is already running"),
        open_sharing(JobGroup(jobs=("a", "b"), sharing="mps"), setup()),
    ):
        pytest.fail("no server")


@pytest.mark.parametrize("at", ["-mig 1", "-cgi", "-dci", "-mig 0"])
def test_a_signal_at_any_command_leaves_the_mode_as_it_was(tmp_path, smi, at):
    """The command itself sends the signal, as Ctrl-C during it does; the mode is put back first."""
    calls = smi()
    program = tmp_path / "nvidia-smi"
    text = program.read_text()
    program.write_text(text + f'case "$*" in *"{at}"*) kill -INT {os.getpid()};; esac\n')
    with pytest.raises(KeyboardInterrupt), mig_instances(GPU, ["3g.20gb"]):
        pass
    assert calls()[-1] == "-i 2 -mig 0"


def test_mps_that_is_not_installed_is_an_error(monkeypatch, setup):
    monkeypatch.setenv("PATH", "/nonexistent")
    with (
        pytest.raises(CotenantError, match="no `nvidia-cuda-mps-control`"),
        open_sharing(JobGroup(jobs=("a", "b"), sharing="mps"), setup()),
    ):
        pytest.fail("no server")


def test_a_busy_gpu_is_refused(setup):
    check_idle(setup())
    with pytest.raises(BackendError, match="in use by 2 processes: 7, 8"):
        check_idle(setup(7, 8))
