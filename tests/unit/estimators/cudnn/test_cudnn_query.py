"""The cuDNN of a job's environment is found and queried in a worker process, whose failures give no answer."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from cotenant.estimators.cudnn.query import CudnnLibrary, installed_cudnn, query_cudnn, query_of, version_text
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
json.dump({"version": 91002, "bytes": [[call["x"][0]] for call in query["calls"]]}, sys.stdout)
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
    found = query_cudnn(installed_cudnn(str(site)), A100, [conv_call()], worker=worker(tmp_path, text))
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
    first = query_cudnn(library, A100, [conv_call(batch=3)], folder=cache, worker=worker(tmp_path, ECHO))
    assert first(conv_call(batch=3)) == 3
    assert version_text(first.version) == "cuDNN 9.10.2"
    dead = worker(tmp_path, "raise SystemExit(1)")
    again = query_cudnn(library, A100, [conv_call(batch=3)], folder=cache, worker=dead)
    assert again(conv_call(batch=3)) == 3
    assert again(conv_call(batch=4)) is None
    assert query_cudnn(library, A100, [conv_call(batch=4)], folder=cache, worker=dead) is None
    assert query_cudnn(library, RTX3060, [conv_call(batch=3)], folder=cache, worker=dead) is None
    more = query_cudnn(
        library, A100, [conv_call(batch=3), conv_call(batch=4)], folder=cache, worker=worker(tmp_path, ECHO)
    )
    assert (more(conv_call(batch=3)), more(conv_call(batch=4))) == (3, 4)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("import os; os.abort()", id="aborts, as cuDNN does without cuBLAS"),
        pytest.param("print('no JSON')", id="says something else"),
        pytest.param('print(\'{"version": 91002, "bytes": []}\')', id="fewer answers than queries"),
        pytest.param("import threading; threading.Event().wait()", id="hangs"),
    ],
)
def test_any_failure_of_the_worker_gives_no_answer(site, tmp_path, text):
    found = query_cudnn(installed_cudnn(str(site)), A100, [conv_call()], timeout_s=1.0, worker=worker(tmp_path, text))
    assert found is None


def test_a_file_that_is_not_a_library_gives_no_answer(site):
    assert query_cudnn(installed_cudnn(str(site)), A100, [conv_call()]) is None


def test_a_damaged_cache_file_is_queried_again(site, tmp_path):
    library, cache = installed_cudnn(str(site)), tmp_path / "cache"
    query_cudnn(library, A100, [conv_call()], folder=cache, worker=worker(tmp_path, ECHO))
    [file] = cache.iterdir()
    file.write_text(json.dumps({"bytes": 3}))
    found = query_cudnn(library, A100, [conv_call()], folder=cache, worker=worker(tmp_path, ECHO))
    assert found(conv_call()) == 32


def test_a_cache_file_above_its_limit_is_started_anew(site, tmp_path, monkeypatch):
    library, cache, live = installed_cudnn(str(site)), tmp_path / "cache", worker(tmp_path, ECHO)
    query_cudnn(library, A100, [conv_call(batch=1)], folder=cache, worker=live)
    [file] = cache.iterdir()
    monkeypatch.setattr("cotenant.estimators.cudnn.query._CACHE_BYTES", file.stat().st_size + 9)
    query_cudnn(library, A100, [conv_call(batch=2)], folder=cache, worker=live)
    assert list(json.loads(file.read_text())["bytes"].values()) == [[2]]
    monkeypatch.setattr("cotenant.estimators.cudnn.query._CACHE_BYTES", 9)
    query_cudnn(library, A100, [conv_call(batch=3)], folder=cache, worker=live)
    assert list(json.loads(file.read_text())["bytes"].values()) == [[2]]


def test_with_benchmark_all_plans_are_known(site, tmp_path):
    text = ECHO.replace('[call["x"][0]]', '[4, 9, 2] if call.get("benchmark") else [4]')
    calls = [conv_call(), conv_call(benchmark=True)]
    found = query_cudnn(installed_cudnn(str(site)), A100, calls, worker=worker(tmp_path, text))
    assert [list(found.plans(call)) for call in calls] == [[4], [4, 9, 2]]
    assert found(calls[1]) == 4


def test_without_queries_no_worker_starts(tmp_path):
    nowhere = CudnnLibrary(graph=Path("/nowhere"), cublaslt=None)
    assert query_cudnn(nowhere, A100, [conv_call(enabled=False)], worker=("/nowhere",)) is None


def test_without_a_null_gpu_products_of_matrices_and_grouped_convolutions_are_not_queried(site, tmp_path):
    """The wheels of `site` are empty files without headers, so nothing can be built from them."""
    known, pointwise = conv_call(), conv_call(w=(64, 64, 1, 1), padding=(0, 0))
    grouped = conv_call(groups=2, w=(64, 32, 3, 3))
    found = query_cudnn(installed_cudnn(str(site)), A100, [known, pointwise, grouped], worker=worker(tmp_path, ECHO))
    assert [found(call) for call in (known, pointwise, grouped)] == [32, None, None]


def test_answers_are_of_one_model_of_gpu(site, tmp_path):
    text = ECHO.replace('[call["x"][0]]', '[query["device"]["multiProcessorCount"]]')
    library, cache = installed_cudnn(str(site)), tmp_path / "cache"
    found = [
        query_cudnn(library, gpu, [conv_call()], folder=cache, worker=worker(tmp_path, text))(conv_call())
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
    found = query_cudnn(installed_cudnn(f"{REAL}/torch"), A100, [*calls, half])
    copies = [round(found(call) / operand) for call in calls]
    assert copies == [1, 2, 2, 0]
    assert found(half) < operand / 100
