"""What the doctor finds on machines with this and without that."""

from __future__ import annotations

import json
import os
import resource
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from cotenant.cli.main import main
from cotenant.core.errors import NotPermitted
from cotenant.core.mig import MigGpu, parse_layout, parse_profiles
from cotenant.core.units import GiB
from cotenant.daemon import doctor, doctor_gpus
from fake_pynvml import FakeDriver, FakeGpu

MOUNTS = "\n".join(
    [
        "overlay / overlay rw 0 0",
        "server:/home /home nfs4 rw 0 0",
        "tmpfs /home/ann/my\\040disk tmpfs rw 0 0",
        "broken",
    ]
)


@pytest.fixture
def found(tmp_path, monkeypatch):
    """The findings, by subject."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def examine(env=None):
        env = {"XDG_STATE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), **(env or {})}
        return {diagnosis.subject: diagnosis for diagnosis in doctor.examine(tmp_path / "sock", env)}

    return examine


def severity_of(found, subject):
    return found[subject].severity if subject in found else None


@pytest.mark.parametrize(
    ("torch", "vision", "severity"),
    [
        pytest.param("2.13.0+cpu", "0.28.0+cu130", "warning", id="PyPI's torchvision"),
        pytest.param("2.13.0+cpu", "0.28.0+cpu", None, id="both for the CPU"),
        pytest.param("2.13.0+cu130", "0.28.0+cu130", None, id="both for CUDA"),
        pytest.param("2.13.0+cpu", "", None, id="no torchvision"),
    ],
)
def test_a_torchvision_for_cuda_beside_a_cpu_build_is_named(tmp_path, monkeypatch, torch, vision, severity):
    """The metadata of PyPI's wheel say `0.28.0`; only its own file names the build."""
    if vision:
        (tmp_path / "torchvision").mkdir()
        (tmp_path / "torchvision" / "version.py").write_text(f"__version__ = '{vision}'\n")
    found = SimpleNamespace(locate_file=lambda name: tmp_path / name)
    monkeypatch.setattr(metadata, "version", lambda name: torch)
    monkeypatch.setattr(metadata, "distribution", lambda name: found)
    diagnoses = {diagnosis.subject: diagnosis for diagnosis in doctor._torch()}
    assert severity_of(diagnoses, "torchvision") == severity
    assert diagnoses["estimates"].severity == "ok"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "overlay"),
        ("/srv", "overlay"),
        ("/home/ann", "nfs4"),
        ("/home/ann/my disk/x", "tmpfs"),
        ("/homework", "overlay"),
    ],
)
def test_the_file_system_of_a_path_is_found(path, kind):
    assert doctor.filesystem_of(Path(path), MOUNTS) == kind


@pytest.mark.parametrize(
    ("text", "severity", "says"),
    [
        (None, "ok", "defaults; policy most-memory"),
        ("[policy]\nname = 'exclusive'", "ok", "config.toml; policy exclusive"),
        ("[policy]\nname = 'exclusiv'", "problem", "no policy named `exclusiv`"),
        ("[policy", "problem", "config.toml: "),
        ("[tcp]\nlisten = '0.0.0.0:1'", "problem", "without TLS"),
    ],
)
def test_the_configuration_is_checked(found, tmp_path, text, severity, says):
    if text is not None:
        (tmp_path / "cotenant").mkdir()
        (tmp_path / "cotenant" / "config.toml").write_text(text)
    finding = found()["configuration"]
    assert (finding.severity, says in finding.detail) == (severity, True), finding


def test_a_network_without_tls_is_a_warning(found):
    findings = found({"COTENANT_TCP__LISTEN": "0.0.0.0:1", "COTENANT_TCP__PLAINTEXT": "true"})
    assert (findings["configuration"].severity, findings["network"].severity) == ("ok", "warning")


def test_the_state_folder_is_the_one_of_the_configuration(found, tmp_path):
    assert (
        str(tmp_path / "elsewhere")
        in found({"COTENANT_DAEMON__STATE_DIR": str(tmp_path / "elsewhere")})["state"].detail
    )


def test_an_unknown_file_system_is_a_finding():
    assert doctor.filesystem_of(Path("/x"), "") == "unknown"


@pytest.mark.parametrize(
    ("version", "severity"),
    [("2.3.1+cu121", "problem"), ("2.4.0", "ok"), ("2.13.0+cpu", "ok"), ("2.12.0a0+git1", "ok"), (None, "warning")],
)
def test_torch_is_checked(found, monkeypatch, version, severity):
    def of(_):
        if version is None:
            raise metadata.PackageNotFoundError
        return version

    monkeypatch.setattr(doctor.metadata, "version", of)
    assert severity_of(found(), "estimates") == severity


def test_a_machine_without_gpus_is_a_finding(found, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeDriver(no_driver=True))
    assert severity_of(found(), "GPUs") == "warning"


def test_gpus_are_listed(found, monkeypatch):
    known = FakeGpu(uuid="GPU-a", name="NVIDIA A100-SXM4-40GB", total_bytes=40 * GiB, gpm=(1.0, 1.0, 1.0))
    unknown = FakeGpu(uuid="GPU-b", name="NVIDIA X1", total_bytes=40 * GiB)
    monkeypatch.setitem(sys.modules, "pynvml", FakeDriver(known, unknown))
    findings = found()
    assert (severity_of(findings, "GPU 0"), severity_of(findings, "GPU 1"), severity_of(findings, "SM activity")) == (
        "ok",
        "warning",
        "warning",
    )
    assert "on GPU 1:" in findings["SM activity"].detail
    assert findings["GPU 1"].advice == "cotenant calibrate"


def test_activity_of_all_gpus_is_checked(found, monkeypatch):
    gpu = FakeGpu(uuid="GPU-a", name="NVIDIA A100-SXM4-40GB", total_bytes=40 * GiB, gpm=(1.0, 1.0, 1.0))
    monkeypatch.setitem(sys.modules, "pynvml", FakeDriver(gpu))
    assert severity_of(found(), "SM activity") is None


def test_mps_is_checked(found, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor_gpus, "DEFAULT_MPS_PIPE", tmp_path / "pipe")
    assert severity_of(found(), "MPS") == "optional"
    program = tmp_path / doctor_gpus.MPS_COMMAND
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert severity_of(found(), "MPS") == "ok"
    (tmp_path / "pipe").mkdir()
    (tmp_path / "pipe" / "control").touch()
    assert severity_of(found(), "MPS") == "warning"


class MigBackend:
    """A backend whose MIG layouts are `gpus`, or cannot be read."""

    def __init__(self, *gpus, error=None):
        self._gpus, self._error = gpus, error
        self.mig = self

    def gpus(self):
        if self._error is not None:
            raise self._error
        return self._gpus

    def close(self):
        pass


A100_PROFILES = parse_profiles(
    [("1g.5gb", 5 * 2**30), ("3g.20gb", 20 * 2**30), ("4g.20gb", 20 * 2**30), ("7g.40gb", 40 * 2**30)]
)
A100 = MigGpu(
    uuid="GPU-0", index=0, profiles=A100_PROFILES, layout=parse_layout(["4g.20gb:0", "3g.20gb:4"], A100_PROFILES)
)


@pytest.mark.parametrize(
    ("backend", "uid", "detail"),
    [
        (
            MigBackend(A100),
            0,
            "GPU 0 has 4g.20gb:0, 3g.20gb:4, and can be repartitioned with `mig.repartition`; unproven",
        ),
        (MigBackend(A100), 1000, "layouts cannot be changed: only root may create instances"),
        (
            MigBackend(replace(A100, foreign="an instance is divided")),
            0,
            "is not repartitioned: an instance is divided",
        ),
        (MigBackend(replace(A100, incomplete=A100.layout[:1])), 0, "4g.20gb:0 without compute instance"),
        (MigBackend(), 0, "no GPU is in MIG mode"),
        (
            MigBackend(error=NotPermitted("no permission", hint="be root")),
            0,
            "layouts cannot be changed: no permission",
        ),
    ],
)
def test_doctor_says_whether_layouts_can_be_changed(backend, uid, detail, monkeypatch):
    monkeypatch.setattr("cotenant.gpus.create", lambda _: backend)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert detail in "; ".join(diagnosis.detail for diagnosis in doctor_gpus.mig_layouts())


@pytest.mark.parametrize(
    ("status", "severity"),
    [
        ({}, "ok"),
        ({"version": "0.0.1"}, "warning"),
        ({"journal_error": "no space left"}, "problem"),
    ],
)
def test_a_running_daemon_is_found(found, monkeypatch, status, severity):
    answer = {"pid": 1, "policy": "x", "backend": "nvml", "journal_error": None, "version": doctor.cotenant.__version__}
    answer["state_dir"] = "/data/state"
    client = SimpleNamespace(status=lambda: {**answer, **status})
    monkeypatch.setattr(doctor, "Client", lambda *_, **__: client)
    assert severity_of(found(), "daemon") == severity


def test_a_stopped_daemon_is_no_problem(found):
    assert severity_of(found(), "daemon") == "optional"


def test_a_state_folder_on_a_network_file_system_is_a_finding(found, monkeypatch):
    monkeypatch.setattr(doctor, "filesystem_of", lambda *_: "nfs4")
    findings = list(doctor._state(Path("/tmp")))
    assert [diagnosis.severity for diagnosis in findings] == ["problem", "ok"]
    assert "on nfs4" in findings[0].detail


def test_a_state_folder_on_a_full_disk_is_a_problem(found, monkeypatch):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    assert severity_of(found(), "state") == "warning"


def test_an_unwritable_state_folder_is_a_problem(found, monkeypatch):
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert severity_of(found(), "state") == "problem"


def test_the_check_of_the_state_folder_leaves_no_files(found, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    assert severity_of(found(), "state") == "ok"
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("limit", "severity"), [(256, "warning"), (1024, None), (resource.RLIM_INFINITY, None)])
def test_the_limit_of_open_files_is_checked(found, monkeypatch, limit, severity):
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda _: (limit, limit))
    assert severity_of(found(), "limits") == severity


@pytest.mark.parametrize(("answer", "severity"), [("Linger=no", "warning"), ("Linger=yes", None), ("what?", None)])
def test_lingering_of_the_user_is_checked(found, tmp_path, monkeypatch, answer, severity):
    program = tmp_path / "loginctl"
    program.write_text(f"#!/bin/sh\necho '{answer}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 1000)
    assert severity_of(found(), "systemd") == severity


@pytest.mark.parametrize(("alone", "severity"), [(None, None), ("`/root/bin/python`: permission denied", "warning")])
def test_a_python_that_only_root_can_run_is_a_finding(found, monkeypatch, alone, severity):
    monkeypatch.setattr(doctor, "why_root_only", lambda: alone)
    findings = found()
    assert severity_of(findings, "users") == severity
    assert alone is None or alone in findings["users"].detail


def test_a_check_that_raises_is_a_finding(found, monkeypatch):
    monkeypatch.setattr(doctor, "_extras", lambda: 1 / 0)
    findings = found()
    assert (findings["extras"].severity, findings["extras"].detail) == (
        "problem",
        "ZeroDivisionError: division by zero",
    )
    assert severity_of(findings, "state") == "ok"


@pytest.mark.parametrize(("broken", "code"), [(False, 0), (True, 1)])
def test_the_exit_code_follows_the_worst_diagnosis(monkeypatch, capsys, broken, code):
    if broken:
        monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert main(["doctor", "--json"]) == code
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {diagnosis["subject"] for diagnosis in findings} >= {"cotenant", "estimates", "state"}


def test_the_text_lists_diagnoses_and_hints(capsys):
    assert main(["doctor"]) in (0, 1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ok        cotenant")
    assert any(line.startswith(f"{'':<22} -> ") for line in lines)


def test_the_state_folder_behind_a_link_is_named(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "state").symlink_to(tmp_path / "data")
    (finding,) = doctor._state(tmp_path / "state")
    assert finding.detail.startswith(f"{tmp_path}/state -> {tmp_path}/data, ")


@pytest.mark.parametrize(
    ("torch", "packages"),
    [
        ("2.13.0+cpu", "'nvidia-cudnn-cu13==9.20.*' nvidia-cuda-runtime "),
        ("2.8.0", "'nvidia-cudnn-cu12==9.10.*' nvidia-cuda-runtime-cu12 "),
    ],
)
def test_a_cudnn_that_can_be_queried_is_optional(found, tmp_path, monkeypatch, torch, packages):
    folder = tmp_path / "site" / "torch"
    spec = SimpleNamespace(origin=str(folder / "__init__.py"))
    monkeypatch.setattr(doctor.util, "find_spec", lambda name: spec if name == "torch" else None)
    monkeypatch.setattr(doctor.metadata, "version", lambda name: torch)
    lacking = found()["cuDNN"]
    assert (lacking.severity, lacking.advice.startswith(f"pip install {packages}(")) == ("optional", True)
    for library in ("cudart", "cublas", "cublasLt", "cudnn"):
        file = folder.parent / "nvidia" / library / "lib" / f"lib{library}.so.13"
        file.parent.mkdir(parents=True)
        file.touch()
    assert found()["cuDNN"].severity == "optional", "its version is not known without a header"
    include = folder.parent / "nvidia" / "cudnn" / "include"
    include.mkdir()
    (include / "cudnn_version.h").write_text(
        "#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 20\n#define CUDNN_PATCHLEVEL 0\n"
    )
    there = found()["cuDNN"]
    assert (there.severity, there.detail.split(" beside")[0]) == ("ok", "cuDNN 9.20.0")


def test_null_gpu_is_optional_and_the_doctor_says_what_it_lacks(found, monkeypatch):
    monkeypatch.setattr("cotenant.nullgpu.wheels.platform.machine", lambda: "aarch64")
    lacking = found()["null GPU"]
    assert (lacking.severity, lacking.detail.partition(";")[0]) == (
        "optional",
        "the null GPU needs Linux on x86-64, found Linux on aarch64",
    )
    monkeypatch.setattr("cotenant.estimators.null_gpu.why_unavailable", lambda python: ("", "", "CUDA 13"))
    assert (found()["null GPU"].severity, found()["null GPU"].detail) == ("ok", "CUDA 13")


NEW = "#!/bin/sh\necho --get-state --pid, --action lock\n"
DRIVER = "NVRM version: NVIDIA UNIX {kind}  {version}  Wed Jan 15 2025\nGCC version:  gcc 12\n"


@pytest.mark.parametrize(
    ("driver", "program", "detail"),
    [
        pytest.param(None, None, "no NVIDIA driver, no `cuda-checkpoint`: paused attempts keep", id="nothing"),
        pytest.param("545.23.08", NEW, "driver 545.23.08, 550 is the first with `cuda-checkpoint`", id="old driver"),
        pytest.param("550.54.15", NEW, "driver 550.54.15, which does not report the state of a process; 570", id="550"),
        pytest.param("570.86.10", None, "no `cuda-checkpoint`: paused attempts keep", id="no program"),
        pytest.param(
            "570.86.10", "#!/bin/sh\necho --toggle\n", "cuda-checkpoint` has no --get-state", id="old program"
        ),
        pytest.param("570.86.10", NEW, "driver 570.86.10: paused attempts can leave their GPUs; unproven", id="both"),
    ],
)
@pytest.mark.parametrize("kind", ["x86_64 Kernel Module", "Open Kernel Module for x86_64"])
def test_what_suspension_lacks_is_named(found, tmp_path, monkeypatch, driver, program, detail, kind):
    monkeypatch.setattr(doctor_gpus, "DRIVER_FILE", tmp_path / "version")
    if driver is not None:
        (tmp_path / "version").write_text(DRIVER.format(kind=kind, version=driver))
    if program is not None:
        (tmp_path / "cuda-checkpoint").write_text(program)
        (tmp_path / "cuda-checkpoint").chmod(0o755)
    finding = found()["suspension"]
    assert detail in finding.detail
    assert finding.severity == ("ok" if "can leave" in detail else "optional")
    assert ("engine.cuda_checkpoint" in finding.advice) == ("can leave" in detail)
