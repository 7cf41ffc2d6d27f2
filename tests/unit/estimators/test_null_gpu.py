"""When the null GPU takes the place of a trace, and what it answers where it cannot. Runs no script."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from cotenant.core.errors import TraceError, UsageError
from cotenant.core.ports import EstimateRequest
from cotenant.core.units import MiB
from cotenant.estimators import null_gpu
from cotenant.estimators.traced import TracedEstimator
from cotenant.gpu_specs import gpu_spec
from cotenant.nullgpu import CudaWheels, NullGpuLibraries
from cotenant.tracing.sandbox import restrictions
from cotenant.tracing.sandbox.overlay import cache_folders
from traces import a_trace, alloc

SPEC = gpu_spec("A100-40GB")
WHEELS = CudaWheels(python=sys.executable, cuda_major=13, cudnn=(9, 20, 0), libraries={}, includes=())


@pytest.fixture
def request_of(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("pass\n")

    def make(*command, gpus=1):
        return EstimateRequest(
            command=command or (str(script),),
            workdir=str(tmp_path),
            env={"PATH": os.defpath},
            gpu="A100-40GB",
            gpus=gpus,
        )

    return make


@pytest.fixture
def runs(monkeypatch):
    """What stands in for the processes: answers by backend, in order, and the environments that they got."""
    answers, environments = {"trace": [], "null-gpu": []}, []

    def run(program, *, null_gpu=None, **more):
        environments.append(null_gpu or {})
        answer = answers["null-gpu" if null_gpu else "trace"].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("cotenant.estimators.traced.trace_program", run)
    monkeypatch.setattr("cotenant.estimators.null_gpu.trace_script", run)
    return answers, environments


@pytest.fixture
def possible(monkeypatch, tmp_path):
    """An environment in which the null GPU can be used."""
    wheels = replace(WHEELS, libraries={"cudnn": tmp_path / "libcudnn.so.9"})
    made = NullGpuLibraries(wheels=wheels, preload=(tmp_path / "built" / "libcuda.so.1",))
    monkeypatch.setattr(null_gpu.NullGpuRunner, "libraries_for", lambda self, python, **_: made)
    monkeypatch.setattr(null_gpu, "default_cache", lambda: tmp_path / "cache")


def traced(mib, **header):
    found = a_trace([alloc(0, mib)])
    return replace(found, header=replace(found.header, **header))


def counted(mib, **header):
    return traced(mib, **{"backend": "null-gpu", "counted_reserved_bytes": mib * MiB, **header})


def test_a_user_without_a_home_directory_is_told_what_the_null_gpu_needs(monkeypatch):
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(TraceError, match="no home directory") as raised:
        null_gpu.default_cache()
    assert raised.value.kind == "unsupported"


def test_null_gpu_is_the_only_device_that_its_process_can_see(runs, possible, request_of):
    answers, environments = runs
    answers["null-gpu"].append(counted(100))
    result = TracedEstimator(backend="null-gpu").explain(request_of())
    assert result.trace.header.backend == "null-gpu"
    assert result.estimate.peak_reserved_bytes == 100 * MiB
    assert environments[0]["CUDA_VISIBLE_DEVICES"].startswith("GPU-42424242-"), "a UUID that no real GPU has"
    assert environments[0]["LD_PRELOAD"].endswith("libcuda.so.1")
    assert any(warning.startswith("experimental") for warning in result.estimate.warnings)


@pytest.mark.parametrize("name", ["TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR"])
def test_what_is_compiled_on_the_null_gpu_is_kept_in_its_own_cache(runs, possible, request_of, tmp_path, name):
    answers, environments = runs
    answers["null-gpu"].append(counted(100))
    TracedEstimator(backend="null-gpu").explain(request_of())
    folder = environments[0][name]
    assert folder.startswith(f"{tmp_path}/cache/compiled-")
    assert Path(folder).is_dir()
    assert cache_folders({name: folder}) == [folder], "the sandbox lets compilers write there"


def test_extension_whose_build_was_stopped_is_not_waited_for(possible, request_of, tmp_path, monkeypatch):
    locks = []

    def build(program, *, null_gpu, **more):
        folder = Path(null_gpu["TORCH_EXTENSIONS_DIR"])
        for name in ("stopped", "earlier"):
            (folder / name).mkdir()
            locks.append(folder / name / "lock")
            locks[-1].touch()
        os.utime(locks[-1], (1, 1))
        raise TraceError("timeout", "the script had not finished")

    monkeypatch.setattr(null_gpu, "trace_script", build)
    with pytest.raises(TraceError, match="had not finished"):
        TracedEstimator(backend="null-gpu").explain(request_of())
    assert [lock.exists() for lock in locks] == [False, True]


@pytest.mark.parametrize(
    ("runs_otherwise", "backend"),
    [
        pytest.param((), "trace", id="traced whole"),
        pytest.param(("compiled",), "null-gpu", id="compiled"),
        pytest.param(("extension",), "null-gpu", id="an extension"),
    ],
)
def test_auto_takes_the_null_gpu_for_what_a_trace_leaves_out(runs, possible, request_of, runs_otherwise, backend):
    answers, _ = runs
    answers["trace"].append(traced(900, runs_otherwise=runs_otherwise))
    answers["null-gpu"].append(counted(100))
    result = TracedEstimator(backend="auto").explain(request_of())
    assert result.trace.header.backend == backend
    assert any("ran on a null GPU in place of a trace" in text for text in result.estimate.warnings) == bool(
        runs_otherwise
    )


@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(TraceError("unsupported", "no null GPU: there is no `cc`"), id="impossible"),
        pytest.param(TraceError("raised", "the script raised IndexError"), id="raised"),
        pytest.param(TraceError("timeout", "the script had not finished"), id="too slow"),
    ],
)
def test_auto_falls_back_to_the_trace_and_says_why(runs, possible, request_of, problem):
    answers, _ = runs
    answers["trace"].append(traced(900, runs_otherwise=("compiled",)))
    answers["null-gpu"].append(problem)
    result = TracedEstimator(backend="auto").explain(request_of())
    assert result.estimate.peak_reserved_bytes == 900 * MiB
    assert f"the script runs compiled code, and was only traced: {problem.message}" in result.estimate.warnings


def test_auto_tries_the_null_gpu_for_what_cannot_be_traced(runs, possible, request_of):
    answers, _ = runs
    answers["trace"] += [TraceError("unsupported", "no kernel for `mylib::op`")] * 2
    answers["null-gpu"] += [counted(100), TraceError("raised", "another error")]
    estimator = TracedEstimator(backend="auto")
    assert estimator.explain(request_of()).trace.header.backend == "null-gpu"
    with pytest.raises(TraceError, match=r"no kernel for `mylib::op`"):
        estimator.explain(request_of())


def test_script_that_wants_more_than_the_gpu_runs_again_without_its_limit(runs, possible, request_of):
    answers, environments = runs
    answers["null-gpu"] += [TraceError("out-of-memory", "CUDA out of memory"), counted(50_000)]
    result = TracedEstimator(backend="null-gpu").explain(request_of())
    assert result.fit.verdict == "no"
    assert result.fit.reserved_bytes == 50_000 * MiB
    limits = [text["COTENANT_NULL_GPU"].rpartition("limit_bytes=")[2] for text in environments]
    assert limits[0] == "0"
    assert int(limits[1]) > 50_000 * MiB
    assert any("ran out of memory" in warning for warning in result.estimate.warnings)


def test_replay_that_differs_from_the_allocator_says_so(runs, possible, request_of):
    answers, _ = runs
    answers["null-gpu"].append(counted(100, counted_reserved_bytes=120 * MiB))
    warnings = TracedEstimator(backend="null-gpu").explain(request_of()).estimate.warnings
    assert "PyTorch's own allocator reserved 120.0 MiB, the replay 100.0 MiB" in warnings


def test_several_gpus_of_one_process_are_refused(runs, possible, request_of):
    with pytest.raises(UsageError, match="the null GPU is one GPU, and the script is to see 4"):
        TracedEstimator(backend="null-gpu").explain(request_of(gpus=4))


# -- environments in which it is impossible -------------------------------------------------------------------------


def test_environment_without_cuda_wheels_is_refused(monkeypatch, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(TraceError, match=r"no null GPU: torch of .* has no CUDA libraries") as refused:
        null_gpu.NullGpuRunner(tmp_path).libraries_for(sys.executable)
    assert (refused.value.kind, refused.value.hint) == (
        "unsupported",
        "install a CUDA build of torch 2.8 or newer by pip",
    )
    why, hint, _ = null_gpu.why_unavailable(sys.executable)
    assert (why, hint) == (refused.value.message.removeprefix("no null GPU: "), refused.value.hint)


def test_another_machine_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(TraceError, match="needs Linux on x86-64, found Linux on aarch64"):
        null_gpu.NullGpuRunner(tmp_path).libraries_for(sys.executable)


def test_no_compiler_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(null_gpu, "find_wheels", lambda python: WHEELS)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TraceError, match="compiled on first use, and there is no `cc`"):
        null_gpu.NullGpuRunner(tmp_path).libraries_for(sys.executable)
    assert null_gpu.why_unavailable(sys.executable)[1] == "install gcc"


def test_full_disk_is_a_sentence_and_leaves_nothing(monkeypatch, tmp_path):
    def build(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(null_gpu, "find_wheels", lambda python: WHEELS)
    monkeypatch.setattr("cotenant.nullgpu.build._Build.run", build)
    with pytest.raises(TraceError, match=r"cannot be written to `.*`: No space left on device"):
        null_gpu.NullGpuRunner(tmp_path / "cache").libraries_for(sys.executable)
    assert list((tmp_path / "cache").iterdir()) == []


def test_kernel_without_landlock_is_refused_unless_the_sandbox_is_off(monkeypatch, tmp_path):
    libraries = NullGpuLibraries(wheels=WHEELS, preload=())
    monkeypatch.setattr(null_gpu, "find_wheels", lambda python: WHEELS)
    monkeypatch.setattr(null_gpu, "build_libraries", lambda wheels, folder: libraries)
    monkeypatch.setattr(null_gpu, "has_landlock", lambda: False)
    runner = null_gpu.NullGpuRunner(tmp_path)
    with pytest.raises(TraceError, match="this kernel has no Landlock"):
        runner.libraries_for(sys.executable)
    assert runner.libraries_for(sys.executable, sandbox=False) is libraries


def test_cache_from_which_no_library_can_be_loaded_is_refused(monkeypatch, tmp_path):
    libraries = NullGpuLibraries(wheels=WHEELS, preload=())
    monkeypatch.setattr(null_gpu, "find_wheels", lambda python: WHEELS)
    monkeypatch.setattr(null_gpu, "build_libraries", lambda wheels, folder: libraries)
    monkeypatch.setattr(null_gpu, "has_landlock", lambda: True)
    monkeypatch.setattr(null_gpu, "check_compiler", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = []

    def mounted(path):
        asked.append(path)
        return SimpleNamespace(f_flag=os.ST_NOEXEC | os.ST_NOSUID)

    monkeypatch.setattr(os, "statvfs", mounted)
    with pytest.raises(TraceError, match=r"no null GPU: libraries in `.*` cannot be loaded: .* `noexec`"):
        null_gpu.NullGpuRunner(tmp_path / "not" / "made").libraries_for(sys.executable)
    assert asked == [tmp_path], "the folder that is there"
    assert "noexec" in null_gpu.why_unavailable(sys.executable)[0]


def test_traced_scripts_may_not_write_to_gpus(tmp_path):
    for name in ("null", "nvidia0", "nvidiactl", "nvidia-uvm", "shm"):
        (tmp_path / name).touch()
    (tmp_path / "dri").mkdir()
    assert sorted(Path(path).name for path in restrictions.device_paths(str(tmp_path))) == ["null", "shm"]
