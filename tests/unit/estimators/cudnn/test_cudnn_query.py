"""The cuDNN of a job's environment is found and queried in a process, whose failures give no answer but a reason."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cotenant.estimators.cudnn.query import (
    CudnnLibrary,
    CudnnQuery,
    CudnnWorkspaces,
    installed_cudnn,
    query_cudnn,
    query_of,
    version_text,
)
from cotenant.estimators.cudnn.sources import query_warnings
from cotenant.estimators.cudnn.worker import strides_of
from cotenant.gpu_specs import gpu_spec
from traces import conv_call

A100, RTX3060 = gpu_spec("A100-40GB"), gpu_spec("RTX3060-12GB")
REAL = os.environ.get("COTENANT_CUDNN_SITE", "")
"""Folder of installed packages with nvidia-cudnn-cu12 or -cu13, 9.8 or later, and its cuBLAS."""

ECHO = """
import json, os, sys
query = json.load(sys.stdin)
assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
print(json.dumps({"version": 91002}), flush=True)
for call in query["calls"]:
    print(json.dumps([call["x"][0]]), flush=True)
"""


@pytest.fixture
def site(tmp_path):
    """An environment with torch and a cuDNN that is an empty file; its torch folder."""
    lib = tmp_path / "nvidia" / "cudnn" / "lib"
    for folder in (lib, tmp_path / "torch", tmp_path / "nvidia" / "cublas" / "lib", lib.parent / "include"):
        folder.mkdir(parents=True)
    (lib / "libcudnn_graph.so.9").touch()
    (tmp_path / "nvidia" / "cublas" / "lib" / "libcublasLt.so.12").touch()
    return tmp_path / "torch"


def worker(tmp_path, text):
    path = tmp_path / "worker.py"
    path.write_text(text)
    return (sys.executable, str(path))


def answers_of(library, gpu, calls, **options):
    """What a worker answers that needs no null GPU; None: nothing."""
    return query_cudnn(library, gpu, calls, preload=(), **options).workspaces


def test_a_cudnn_beside_torch_is_found_with_its_dependencies(site):
    found = installed_cudnn(str(site))
    assert found.graph == site.parent / "nvidia/cudnn/lib/libcudnn_graph.so.9"
    assert (found.cublaslt.name, found.wheels) == ("libcublasLt.so.12", site.parent / "nvidia")


@pytest.mark.parametrize(("minor", "is_supported"), [(1, False), (7, False), (8, True), (20, True)])
def test_only_cudnn_9_8_and_later_can_be_queried(site, minor, is_supported):
    text = f"#define CUDNN_MAJOR 9\n#define CUDNN_MINOR {minor}\n"
    (site.parent / "nvidia/cudnn/include/cudnn_version.h").write_text(text)
    assert (installed_cudnn(str(site)) is not None) == is_supported


@pytest.mark.parametrize(("version", "skips"), [("2.8.0+cu128", False), ("2.13.0+cu130", True), (None, False)])
def test_the_worker_learns_whether_torch_skips_engines(site, tmp_path, version, skips):
    if version is not None:
        (site / "version.py").write_text(f"__version__ = '{version}'\ndebug = False\n")
    text = ECHO.replace('[call["x"][0]]', '[int(query["skips_engines"])]')
    found = answers_of(installed_cudnn(str(site)), A100, [conv_call()], worker=worker(tmp_path, text))
    assert found(conv_call()) == skips


def test_without_cudnn_there_is_no_library(tmp_path):
    assert installed_cudnn(str(tmp_path / "torch")) is None


@pytest.mark.parametrize(
    ("call", "changes"),
    [
        pytest.param(conv_call(), {"kind": "conv_forward", "x": [32, 64, 224, 224], "tf32": True}, id="as it is"),
        pytest.param(
            conv_call(
                x=(8, 4, 100), w=(6, 4, 3), y=(8, 6, 98), stride=(1,), padding=(0,), dilation=(2,)
            ),
            {"x": [8, 4, 1, 100], "w": [6, 4, 1, 3], "stride": [1, 1], "padding": [0, 0], "dilation": [1, 2]},
            id="one dimension has a height of 1",
        ),
        pytest.param(
            conv_call(x=(8, 4, 9, 9), w=(4, 6, 3, 3), y=(8, 6, 11, 11), transposed=True),
            {"kind": "conv_dgrad", "x": [8, 6, 11, 11], "y": [8, 4, 9, 9]},
            id="a transposed one is the gradient of its reverse",
        ),
    ],
)  # fmt: skip
def test_a_query_has_shapes_strides_and_dtype(call, changes):
    assert query_of(call, (8, 0)).items() >= changes.items()


@pytest.mark.parametrize(
    "changes",
    [{"groups": 64, "w": (64, 1, 3, 3)}, {"enabled": False}, {"dtype": "float64"}],
    ids=["depthwise", "disabled", "float64"],
)
def test_calls_that_cudnn_is_not_queried_for(changes):
    assert query_of(conv_call(**changes), (8, 0)) is None


def test_answers_are_cached_and_only_new_calls_are_queried(site, tmp_path):
    library, cache = installed_cudnn(str(site)), tmp_path / "cache"
    first = answers_of(library, A100, [conv_call(batch=3)], folder=cache, worker=worker(tmp_path, ECHO))
    assert first(conv_call(batch=3)) == 3
    assert version_text(first.version) == "cuDNN 9.10.2"
    dead = worker(tmp_path, "raise SystemExit(1)")
    again = answers_of(library, A100, [conv_call(batch=3)], folder=cache, worker=dead)
    assert again(conv_call(batch=3)) == 3
    assert again(conv_call(batch=4)) is None
    assert answers_of(library, A100, [conv_call(batch=4)], folder=cache, worker=dead) is None
    assert answers_of(library, RTX3060, [conv_call(batch=3)], folder=cache, worker=dead) is None
    more = answers_of(
        library, A100, [conv_call(batch=3), conv_call(batch=4)], folder=cache, worker=worker(tmp_path, ECHO)
    )
    assert (more(conv_call(batch=3)), more(conv_call(batch=4))) == (3, 4)


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        pytest.param("import os; os.abort()", "it crashed with SIGABRT", id="aborts, as cuDNN does without cuBLAS"),
        pytest.param("print('no JSON')", "its reply cannot be read", id="prints something else"),
        pytest.param("print('{\"version\": true}')", "its reply cannot be read", id="no version"),
        pytest.param(
            "print('{\"version\": 91002}')", "its reply has fewer answers than queries", id="fewer answers than queries"
        ),
        pytest.param(
            "print('{\"version\": 91002}\\n[-1]')", "its reply cannot be read", id="a negative size"
        ),
        pytest.param("import sys; sys.exit('OSError: no cuDNN')", "OSError: no cuDNN", id="says why"),
        pytest.param("import sys; sys.exit(3)", "it ended with exit code 3", id="exits without a word"),
        pytest.param("import threading; threading.Event().wait()", "it did not end within 1 s", id="waits"),
        pytest.param("while True: pass", "it took more than 1 s of CPU time", id="works too long"),
    ],
)  # fmt: skip
def test_a_failure_of_the_worker_gives_no_answer_but_the_reason(site, tmp_path, text, failure):
    limit_s = 1.0 if "wait" in text else 300.0
    found = query_cudnn(
        installed_cudnn(str(site)), A100, [conv_call()],
        cpu_s=1 if "while" in text else 60, timeout_s=limit_s, worker=worker(tmp_path, text), preload=(),
    )  # fmt: skip
    assert found == CudnnQuery(failure=failure)


def test_a_worker_that_cannot_start_gives_the_reason(site):
    found = query_cudnn(installed_cudnn(str(site)), A100, [conv_call()], worker=("/nowhere",), preload=())
    assert found == CudnnQuery(failure="its process did not start: No such file or directory")


def test_what_was_answered_before_a_failure_is_used_and_cached(site, tmp_path):
    library, calls = installed_cudnn(str(site)), [conv_call(batch=n) for n in (3, 4, 5)]
    text = ECHO.replace("    print", "    while call['x'][0] == 5: pass\n    print")
    options = {"folder": tmp_path / "cache", "preload": ()}
    found = query_cudnn(library, A100, calls, cpu_s=2, worker=worker(tmp_path, text), **options)
    assert found.failure == "it took more than 2 s of CPU time"
    assert [found.workspaces(call) for call in calls] == [3, 4, None]
    dead = worker(tmp_path, "raise SystemExit(1)")
    assert query_cudnn(library, A100, calls[:2], worker=dead, **options).failure == ""


def test_a_query_that_crashes_the_worker_is_the_only_one_without_an_answer(site, tmp_path):
    calls = [conv_call(batch=n) for n in (3, 4, 5, 6, 7)]
    text = ECHO.replace("    print", "    if call['x'][0] % 2 == 0: os.abort()\n    print")
    library, made = installed_cudnn(str(site)), worker(tmp_path, text)
    found = query_cudnn(library, A100, calls, worker=made, preload=())
    assert [found.workspaces(call) for call in calls] == [3, None, 5, None, 7]
    assert found.failure == "it crashed with SIGABRT"
    often = [conv_call(batch=n) for n in (2, 4, 6, 7)]
    assert query_cudnn(library, A100, often, worker=made, preload=()).workspaces is None


def test_a_file_that_is_not_a_library_gives_the_reason(site):
    found = query_cudnn(installed_cudnn(str(site)), A100, [conv_call()], preload=())
    assert found.workspaces is None
    assert found.failure.startswith("OSError: ")
    assert "file too short" in found.failure


def test_a_damaged_cache_file_is_queried_again(site, tmp_path):
    library, cache = installed_cudnn(str(site)), tmp_path / "cache"
    answers_of(library, A100, [conv_call()], folder=cache, worker=worker(tmp_path, ECHO))
    [file] = cache.iterdir()
    file.write_text(json.dumps({"bytes": 3}))
    found = answers_of(library, A100, [conv_call()], folder=cache, worker=worker(tmp_path, ECHO))
    assert found(conv_call()) == 32


def test_a_cache_file_above_its_limit_is_started_anew(site, tmp_path, monkeypatch):
    library, cache, live = installed_cudnn(str(site)), tmp_path / "cache", worker(tmp_path, ECHO)
    answers_of(library, A100, [conv_call(batch=1)], folder=cache, worker=live)
    [file] = cache.iterdir()
    monkeypatch.setattr("cotenant.estimators.cudnn.query._CACHE_BYTES", file.stat().st_size + 9)
    answers_of(library, A100, [conv_call(batch=2)], folder=cache, worker=live)
    assert list(json.loads(file.read_text())["bytes"].values()) == [[2]]
    monkeypatch.setattr("cotenant.estimators.cudnn.query._CACHE_BYTES", 9)
    answers_of(library, A100, [conv_call(batch=3)], folder=cache, worker=live)
    assert list(json.loads(file.read_text())["bytes"].values()) == [[2]]


def test_with_benchmark_all_plans_are_known(site, tmp_path):
    text = ECHO.replace('[call["x"][0]]', '[4, 9, 2] if call.get("benchmark") else [4]')
    calls = [conv_call(), conv_call(benchmark=True)]
    found = answers_of(installed_cudnn(str(site)), A100, calls, worker=worker(tmp_path, text))
    assert [list(found.plans(call)) for call in calls] == [[4], [4, 9, 2]]
    assert found(calls[1]) == 4


def test_without_queries_no_worker_starts(tmp_path):
    nowhere = CudnnLibrary(graph=Path("/nowhere"), cublaslt=None)
    assert query_cudnn(nowhere, A100, [conv_call(enabled=False)], worker=("/nowhere",)) == CudnnQuery()


def test_without_a_null_gpu_nothing_is_queried(site, tmp_path):
    """cuDNN would choose other kernels: 64 in place of 108 MiB, seen without the wheel of libcudart."""
    found = query_cudnn(installed_cudnn(str(site)), A100, [conv_call()], worker=worker(tmp_path, ECHO))
    assert found.workspaces is None
    assert "no libcudart" in found.failure
    elsewhere = replace(installed_cudnn(str(site)), wheels=None)
    found = query_cudnn(elsewhere, A100, [conv_call()], worker=worker(tmp_path, ECHO))
    assert found == CudnnQuery(
        failure="its CUDA libraries are not in NVIDIA's wheels, from which the null GPU is built"
    )


@pytest.mark.skipif(not (shutil.which("cc") and shutil.which("nm")), reason="the null GPU is compiled")
def test_libraries_may_be_built_elsewhere_than_answers_are_kept(site, tmp_path):
    for name in ("libcudart.so.12", "libcublas.so.12", "libcudnn.so.9"):
        (tmp_path / "nvidia" / "cublas" / "lib" / name).touch()
    version = "".join(f"#define CUDNN_{part} 9\n" for part in ("MAJOR", "MINOR", "PATCHLEVEL"))
    (tmp_path / "nvidia" / "cudnn" / "include" / "cudnn_version.h").write_text(version)
    built, answers = tmp_path / "built", tmp_path / "answers"
    found = query_cudnn(installed_cudnn(str(site)), A100, [conv_call()], folder=answers, libraries=built)
    assert found.workspaces is None, "these wheels are empty"
    assert (built.is_dir(), answers.exists()) == (True, False)


def test_a_warning_gives_the_reason():
    failed = CudnnQuery(failure="it crashed with SIGABRT")
    assert query_warnings(failed) == (
        "the cuDNN of the job's environment gave no answer for convolutions: it crashed with SIGABRT",
    )
    known = CudnnWorkspaces(version=91002, capability=(8, 0), found={"": [0]})
    assert "no answer for some convolutions: " in query_warnings(replace(failed, workspaces=known))[0]
    assert query_warnings(CudnnQuery(workspaces=known)) == query_warnings(CudnnQuery()) == ()


def test_answers_are_of_one_model_of_gpu(site, tmp_path):
    text = ECHO.replace('[call["x"][0]]', '[query["device"]["multiProcessorCount"]]')
    library, cache = installed_cudnn(str(site)), tmp_path / "cache"
    found = [
        answers_of(library, gpu, [conv_call()], folder=cache, worker=worker(tmp_path, text))(conv_call())
        for gpu in (A100, RTX3060, A100)
    ]
    assert found == [108, 28, 108]


@pytest.mark.parametrize(("channels_last", "strides"), [(False, [60, 20, 5, 1]), (True, [60, 1, 15, 3])])
def test_strides_follow_the_memory_format(channels_last, strides):
    assert strides_of((2, 3, 4, 5), channels_last=channels_last) == strides


@pytest.mark.skipif(not REAL, reason="COTENANT_CUDNN_SITE names no folder with cuDNN 9.8 or later")
def test_a_real_cudnn_copies_operands_in_float32_and_not_in_half_precision_channels_last():
    operand = 4 * 32 * 64 * 224 * 224
    calls = [conv_call(), conv_call("conv_dgrad"), conv_call("conv_wgrad"), conv_call(allow_tf32=False)]
    half = conv_call(dtype="bfloat16", channels_last=True)
    found = query_cudnn(installed_cudnn(f"{REAL}/torch"), A100, [*calls, half]).workspaces
    copies = [round(found(call) / operand) for call in calls]
    assert copies == [1, 2, 2, 0]
    assert found(half) < operand / 100
