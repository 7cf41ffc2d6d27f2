"""Queries an installed cuDNN for the workspaces it would use on a GPU that is absent, in a process of its own.

    python -m cotenant.estimators.cudnn.worker < request > answer

Request, as JSON: `graph`, path of `libcudnn_graph.so.9`; `preload`, libraries that it needs; `device`, the properties
of the GPU (`nullgpu.device.cudnn_device`); `skips_engines`, whether torch skips engines for 3-D convolutions; `calls`,
a list of queries (`query.query_of`). Answer: a line with `version`, then for each call a line with the list of the
workspaces of its plans, empty where there is none. cuDNN aborts the process where it lacks a library, so no other
process may query it, and what was printed before is an answer.

The query is torch's: the first plan of the heuristics that passes its filter, and where none can be built, the first of
the fallback list; with `cudnn.benchmark` all plans of both, in this order (aten/src/ATen/native/cudnn/Conv_v8.cpp,
`get_generator_sources`, `generate_and_filter_plans`, `get_plans_from_find`). Heuristics take the properties of a device
in place of a device from cuDNN 9.8 on (cudnn_graph.h, `CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR`).
"""

from __future__ import annotations

import ctypes
import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from ctypes import byref, c_float, c_int, c_int64, c_void_p
from typing import Any

# Values of the enumerations in cudnn_graph.h, version 9.
_DTYPES = {"float32": 0, "float16": 2, "bfloat16": 9}
_TYPE_DATA, _TYPE_INT64, _TYPE_FLOAT, _TYPE_MODE, _TYPE_HEUR, _TYPE_NOTE, _TYPE_DESCRIPTOR, _TYPE_CHAR = (
    *(1, 3, 4, 7, 8, 11, 15, 24),
)
_CONVOLUTION, _ENGINE, _ENGINE_CONFIG, _HEURISTICS, _PLAN, _GRAPH, _TENSOR, _DEVICE_PROPERTIES = (
    *(1, 2, 3, 4, 5, 15, 17, 38),
)
_CROSS_CORRELATION = 1
_MODES = (0, 2)
"""CUDNN_HEUR_MODE_INSTANT, CUDNN_HEUR_MODE_FALLBACK."""
_NOTE_TENSOR_CORE, _NOTE_DOWN_CONVERT, _NOTE_NONDETERMINISTIC = 0, 1, 4
_SKIPPED = {"conv_dgrad": (23, 8000, 1_000_000), "conv_forward": (23, 90800, 91500)}
"""Engines that torch skips for 3-D convolutions, and cuDNN's versions, from the first up to the one after the last.

Source: aten/src/ATen/native/cudnn/Conv_v8.cpp, `plan_errata_exception`, of torch 2.11 and 2.13 (pytorch issue 163539).
"""
_ALIGNMENT_BYTES = 32
_MAX_PLANS = 64


class CudnnError(Exception):
    """cuDNN returned an error."""


class CudnnBackend:
    """The backend API of one cuDNN, for one model of GPU.

    Raises:
        OSError: it cannot be loaded.
        CudnnError: it cannot be queried without a device.
    """

    def __init__(
        self, graph: str, preload: Sequence[str], device: Mapping[str, object], *, skips_engines: bool
    ) -> None:
        for path in preload:
            # cuDNN finds cublasLt by dlopen(3) with its soname: one that is loaded already is taken, wherever it lies.
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        self._cudnn = ctypes.CDLL(graph, mode=ctypes.RTLD_GLOBAL)
        # ctypes assumes int for results.
        self._cudnn.cudnnGetVersion.restype = ctypes.c_size_t
        self.version = int(self._cudnn.cudnnGetVersion())
        self._skips_engines = skips_engines
        self._made: list[c_void_p] = []
        self._device = self._new(_DEVICE_PROPERTIES)
        text = json.dumps(device).encode()
        self._set(self._device, 2702, _TYPE_CHAR, len(text), ctypes.create_string_buffer(text, len(text)))
        self._finish(self._device)
        self._made.clear()

    def workspaces(self, call: Mapping[str, Any]) -> list[int]:
        """Workspaces of the plans that torch would build for `call`: the one it runs, or all that it measures."""
        plans = self._plans(call)
        return list(plans) if call.get("benchmark") else list(itertools.islice(plans, 1))

    def _plans(self, call: Mapping[str, Any]) -> Iterator[int]:
        """Workspaces of the plans for `call` that can be built, those of the heuristics first."""
        for mode in _MODES:
            try:
                for config in self._configs(call, mode):
                    if self._may_run(config, call):
                        plan = self._new(_PLAN)
                        self._one(plan, 401, _TYPE_DESCRIPTOR, config)
                        self._one(plan, 407, _TYPE_DESCRIPTOR, self._device)
                        if self._cudnn.cudnnBackendFinalize(plan) == 0:
                            yield self._number(plan, 402)
            except CudnnError:
                continue
            finally:
                for descriptor in reversed(self._made):
                    self._cudnn.cudnnBackendDestroyDescriptor(descriptor)
                self._made.clear()

    def _configs(self, call: Mapping[str, Any], mode: int) -> Iterator[c_void_p]:
        """Engine configurations of the heuristics, best first."""
        heuristics = self._new(_HEURISTICS)
        self._one(heuristics, 201, _TYPE_DESCRIPTOR, self._graph(call))
        self._one(heuristics, 200, _TYPE_HEUR, c_int(mode))
        self._one(heuristics, 204, _TYPE_DESCRIPTOR, self._device)
        self._finish(heuristics)
        found = (c_void_p * _MAX_PLANS)(*(self._new(_ENGINE_CONFIG) for _ in range(_MAX_PLANS)))
        count = self._get(heuristics, 202, _TYPE_DESCRIPTOR, _MAX_PLANS, found)
        yield from (c_void_p(pointer) for pointer in found[: min(count, _MAX_PLANS)])

    def _may_run(self, config: c_void_p, call: Mapping[str, Any]) -> bool:
        engine = (c_void_p * 1)(self._new(_ENGINE))
        self._get(config, 300, _TYPE_DESCRIPTOR, 1, engine)
        if self._skips(c_void_p(engine[0]), call):
            return False
        values = (c_int * 16)()
        notes = set(values[: self._get(c_void_p(engine[0]), 1303, _TYPE_NOTE, 16, values)])
        # Conv_v8.cpp, `filterEngineConfigs`: torch drops engines with these notes.
        barred = {_NOTE_DOWN_CONVERT}
        if call["deterministic"]:
            barred.add(_NOTE_NONDETERMINISTIC)
        if call["dtype"] == "float32" and not call["tf32"]:
            barred.add(_NOTE_TENSOR_CORE)
        return not notes & barred

    def _skips(self, engine: c_void_p, call: Mapping[str, Any]) -> bool:
        index, first, end = _SKIPPED.get(call["kind"], (-1, 0, 0))
        if not self._skips_engines or len(call["x"]) < 5 or not first <= self.version < end:
            return False
        return self._number(engine, 1301) == index

    def _graph(self, call: Mapping[str, Any]) -> c_void_p:
        x, w, y = (self._tensor(number, call[name], call) for number, name in enumerate("xwy", start=1))
        conv = self._new(_CONVOLUTION)
        self._one(conv, 100, _TYPE_DATA, c_int(_DTYPES["float32"]))
        self._one(conv, 101, _TYPE_MODE, c_int(_CROSS_CORRELATION))
        self._ints(conv, 106, [len(call["x"]) - 2])
        for attribute, name in ((103, "stride"), (105, "padding"), (104, "padding"), (102, "dilation")):
            self._ints(conv, attribute, call[name])
        self._finish(conv)
        operation, first, tensors = {
            "conv_forward": (10, 700, ((703, w), (704, x), (705, y))),
            "conv_dgrad": (12, 706, ((709, w), (710, x), (711, y))),
            "conv_wgrad": (11, 712, ((715, w), (716, x), (717, y))),
        }[call["kind"]]
        made = self._new(operation)
        self._one(made, first, _TYPE_FLOAT, c_float(1.0))
        self._one(made, first + 1, _TYPE_FLOAT, c_float(0.0))
        self._one(made, first + 2, _TYPE_DESCRIPTOR, conv)
        for attribute, tensor in tensors:
            self._one(made, attribute, _TYPE_DESCRIPTOR, tensor)
        self._finish(made)
        graph = self._new(_GRAPH)
        self._one(graph, 801, _TYPE_DESCRIPTOR, made)
        self._finish(graph)
        return graph

    def _tensor(self, number: int, shape: Sequence[int], call: Mapping[str, Any]) -> c_void_p:
        tensor = self._new(_TENSOR)
        self._one(tensor, 901, _TYPE_DATA, c_int(_DTYPES[call["dtype"]]))
        self._ints(tensor, 902, shape)
        self._ints(tensor, 903, strides_of(shape, channels_last=call["channels_last"]))
        self._ints(tensor, 900, [_ALIGNMENT_BYTES])
        self._ints(tensor, 906, [number])
        self._finish(tensor)
        return tensor

    def _new(self, kind: int) -> c_void_p:
        made = c_void_p()
        self._check(self._cudnn.cudnnBackendCreateDescriptor(c_int(kind), byref(made)), "create")
        self._made.append(made)
        return made

    def _set(self, descriptor: c_void_p, attribute: int, kind: int, count: int, values: Any) -> None:
        done = self._cudnn.cudnnBackendSetAttribute(descriptor, c_int(attribute), c_int(kind), c_int64(count), values)
        self._check(done, f"set {attribute}")

    def _one(self, descriptor: c_void_p, attribute: int, kind: int, value: Any) -> None:
        self._set(descriptor, attribute, kind, 1, byref(value))

    def _ints(self, descriptor: c_void_p, attribute: int, values: Sequence[int]) -> None:
        self._set(descriptor, attribute, _TYPE_INT64, len(values), (c_int64 * len(values))(*values))

    def _get(self, descriptor: c_void_p, attribute: int, kind: int, room: int, values: Any) -> int:
        """Fill `values` with an attribute; the number of its elements."""
        count = c_int64()
        done = self._cudnn.cudnnBackendGetAttribute(
            descriptor, c_int(attribute), c_int(kind), c_int64(room), byref(count), values
        )
        self._check(done, f"get {attribute}")
        return count.value

    def _number(self, descriptor: c_void_p, attribute: int) -> int:
        value = c_int64()
        self._get(descriptor, attribute, _TYPE_INT64, 1, byref(value))
        return value.value

    def _finish(self, descriptor: c_void_p) -> None:
        self._check(self._cudnn.cudnnBackendFinalize(descriptor), "finalize")

    def _check(self, status: int, what: str) -> None:
        if status:
            raise CudnnError(f"cuDNN {self.version}: {what}: status {status}")


def strides_of(shape: Sequence[int], *, channels_last: bool) -> list[int]:
    """Strides in elements of a dense tensor (N, C, ...)."""
    order = [1, *range(len(shape) - 1, 1, -1), 0] if channels_last else range(len(shape) - 1, -1, -1)
    strides, step = [0] * len(shape), 1
    for axis in order:
        strides[axis] = step
        step *= shape[axis]
    return strides


def main() -> None:
    """Read a request, answer it."""
    request = json.load(sys.stdin)
    try:
        library = CudnnBackend(
            request["graph"], request["preload"], request["device"], skips_engines=request["skips_engines"]
        )
    except (OSError, CudnnError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print(json.dumps({"version": library.version}), flush=True)
    for call in request["calls"]:
        print(json.dumps(library.workspaces(call)), flush=True)


if __name__ == "__main__":
    main()
