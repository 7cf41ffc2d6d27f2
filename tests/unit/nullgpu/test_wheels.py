"""Which environments the null GPU refuses, and why."""

from __future__ import annotations

import platform
import sys

import pytest

from cotenant.nullgpu import NullGpuError, find_wheels


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """Makes an environment whose wheels have the given library names and cuDNN version; the files are empty."""

    def make(libraries=("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13"), cudnn="9 20 0"):
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "__init__.py").touch()
        lib = tmp_path / "nvidia" / "cu13" / "lib"
        lib.mkdir(parents=True)
        for name in libraries:
            (lib / name).touch()
        if cudnn:
            folder = tmp_path / "nvidia" / "cudnn"
            (folder / "lib").mkdir(parents=True)
            (folder / "lib" / "libcudnn.so.9").touch()
            (folder / "include").mkdir()
            words = zip(("MAJOR", "MINOR", "PATCHLEVEL"), cudnn.split(), strict=True)
            lines = [f"#define CUDNN_{name} {value}\n" for name, value in words]
            (folder / "include" / "cudnn_version.h").write_text("".join(lines))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return make


def test_wheels_are_found_without_importing_torch(wheels, tmp_path):
    wheels()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('imported')")
    found = find_wheels(sys.executable)
    assert (found.cuda_major, found.cudnn) == (13, (9, 20, 0))
    assert found.libraries["cudart"] == tmp_path / "nvidia" / "cu13" / "lib" / "libcudart.so.13"
    assert tmp_path / "nvidia" / "cudnn" / "include" in found.includes


def test_of_a_library_in_two_folders_the_same_one_is_taken_each_time(wheels, tmp_path):
    wheels()
    older = tmp_path / "nvidia" / "cuda_runtime" / "lib"
    older.mkdir(parents=True)
    (older / "libcudart.so.13").touch()
    (older / "libcudart.so.13.debug").touch()
    assert find_wheels(sys.executable).libraries["cudart"] == tmp_path / "nvidia" / "cu13" / "lib" / "libcudart.so.13"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        pytest.param({"libraries": (), "cudnn": ""}, "no libcudart, libcublas, libcublasLt, libcudnn", id="CPU build"),
        pytest.param({"libraries": ("libcudart.so.13",)}, "no libcublas, libcublasLt(?:\\n|$)", id="incomplete"),
        pytest.param(
            {"libraries": ("libcudart.so.11.0", "libcublas.so.11", "libcublasLt.so.11")},
            "built for CUDA 11, wanted one of \\[12, 13\\]",
            id="unknown CUDA",
        ),
        pytest.param(
            {"cudnn": "9 7 1"}, "cuDNN 9.7.1 cannot be queried without a GPU, wanted 9.8 or newer", id="old cuDNN"
        ),
    ],
)
def test_wheels_that_cannot_serve_are_refused(wheels, options, why):
    wheels(**options)
    with pytest.raises(NullGpuError, match=why):
        find_wheels(sys.executable)


def test_environment_without_torch_is_refused(tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    python.chmod(0o755)
    with pytest.raises(NullGpuError, match="has no torch"):
        find_wheels(str(python))


def test_python_that_does_not_run_is_refused(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    python.chmod(0o755)
    with pytest.raises(NullGpuError, match="does not run: broken"):
        find_wheels(str(python))


def test_other_machines_are_refused(wheels, monkeypatch):
    wheels()
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(NullGpuError, match="needs Linux on x86-64, found Linux on aarch64"):
        find_wheels(sys.executable)
