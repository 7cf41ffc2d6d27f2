"""Runs an unmodified script on a real GPU and measures it: `python probe.py REQUEST ANSWER`.

The entry point of the measured process. It runs in the job's Python, which need not have cotenant, so it imports only
the standard library and torch. It stops by the tracer's rule, so that both see the same work: after `steps` optimizer
steps (or `seconds`) the data loaders run dry, which ends the epoch and lets a validation pass run. The run ends when
the script trains again or exits, or at once if it has no data loader. Then the process keeps its memory until the
parent has measured it, and exits with `os._exit`.

Torch's peak counters are reset at every change of phase to measure a peak per phase; a script that reads them sees the
peaks of the phase only.
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import importlib
import importlib.util
import json
import os
import pathlib
import pickle
import platform
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

KINDS = ("allocated", "reserved", "active", "requested")
SNAPSHOT_LIMIT_BYTES = 64 * 2**20
MAX_EVENTS = 20_000


class PeakMeter:
    """Peaks of torch's allocator on the current GPU, by phase; empty until the script initializes CUDA."""

    def __init__(self, cuda: Any) -> None:
        self.cuda = cuda
        self.phase = "load"
        self.marks: list[tuple[str, float]] = []
        self.peaks: dict[str, dict[str, int]] = {}

    def enter(self, phase: str) -> str:
        """Begin a phase; returns the previous one."""
        before = self.phase
        if phase != before:
            self.read()
            self.phase = phase
            self.marks.append((phase, time.time()))
        return before

    def read(self) -> None:
        """Add the peaks since the last call to the phase."""
        if not self.cuda.is_initialized():
            return
        stats = self.cuda.memory_stats_as_nested_dict()
        peaks = self.peaks.setdefault(self.phase, dict.fromkeys(KINDS, 0))
        for kind in KINDS:
            with contextlib.suppress(KeyError):
                peaks[kind] = max(peaks[kind], int(stats[f"{kind}_bytes"]["all"]["peak"]))
        self.cuda.reset_peak_memory_stats()

    def peak(self, kind: str) -> int | None:
        """The maximum over all phases."""
        return max((peak[kind] for peak in self.peaks.values()), default=None)


class StepClock:
    """End of each optimizer step, by CUDA events if CUDA is initialized."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.host_s: list[float] = []
        self._events: list[Any] = []
        self._base_s = 0.0

    def tick(self) -> None:
        """A step ended: its last kernel was launched."""
        if self.torch.cuda.is_initialized() and len(self._events) < MAX_EVENTS:
            event = self.torch.cuda.Event(enable_timing=True)
            event.record()
            if not self._events:
                # Only the first step synchronizes, to relate the GPU's clock to the host's.
                event.synchronize()
                self._base_s = time.time()
            self._events.append(event)
        self.host_s.append(time.time())

    def ended_s(self) -> list[float]:
        """End of each step, in seconds since the epoch; call when the GPU is idle."""
        if not self._events or len(self._events) != len(self.host_s):
            return self.host_s
        first: Any = self._events[0]
        return [self._base_s + first.elapsed_time(event) / 1000 for event in self._events]


class Probe:
    """Measures one script, from installing hooks to writing the answer."""

    def __init__(self, request: dict[str, Any], answer: pathlib.Path) -> None:
        import torch

        self.torch = torch
        self.request = request
        self.answer = answer
        self.steps = 0
        self.loaders = 0
        self.draining = False
        self.began_s = time.time()
        self.notes: list[str] = []
        self.warmup_steps = int(request["warmup_steps"])
        self.meter = PeakMeter(torch.cuda)
        self.clock = StepClock(torch)
        self._is_done = False
        self._pid = os.getpid()

    # -- hooks

    def install(self) -> None:
        """Hook into modules, autograd, optimizers and data loaders of the whole process."""
        torch = self.torch
        self._first_forward = torch.nn.modules.module.register_module_forward_pre_hook(self._enter_module)
        optimizers = importlib.import_module("torch.optim.optimizer")  # `torch.optim` does not export the module
        optimizers.register_optimizer_step_pre_hook(self._before_step)
        optimizers.register_optimizer_step_post_hook(self._after_step)
        for name in ("backward", "grad"):
            setattr(torch.autograd, name, self._as_backward(getattr(torch.autograd, name)))
        loader = torch.utils.data.DataLoader
        iterate = loader.__iter__

        batches = load_sibling("probe_batches").Batches

        def begin(this: Any) -> Any:
            self.loaders += 1
            return batches(iterate(this), self)

        loader.__iter__ = begin
        if self.request.get("history_entries"):
            # Lazily: recording would initialize CUDA before the script does.
            torch.cuda._lazy_call(self._start_history)

    def _start_history(self) -> None:
        try:
            self.torch.cuda.memory._record_memory_history(
                "all", context="alloc", stacks="python", max_entries=self.request["history_entries"]
            )
        except Exception as error:
            self.notes.append(f"no history: {type(error).__name__}: {first_line(error)}")

    def _enter_module(self, module: Any, args: Any) -> None:
        if self.meter.phase == "load" and self.torch.cuda.is_initialized():
            self.meter.enter("forward")
            self._first_forward.remove()  # the phase `load` does not return, and hooks cost time

    def _as_backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            before = self.meter.enter("backward")
            try:
                return function(*args, **kwargs)
            finally:
                self.meter.enter("forward" if before == "load" else before)

        return call

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.draining:
            self.finish("ok")
        self.meter.enter("step")

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.steps += 1
        self.clock.tick()
        self.meter.enter("forward")
        if not self.draining and self._is_enough():
            self.draining = True
            if not self.loaders:
                self.finish("ok")

    def _is_enough(self) -> bool:
        seconds, barrier = self.request.get("seconds"), bool(self.request.get("barrier"))
        if barrier and self.steps == self.warmup_steps:
            self._wait_for_others()
        if seconds is None:
            return self.steps >= int(self.request["steps"]) + (self.warmup_steps if barrier else 0)
        return self.steps > self.warmup_steps and time.time() - self.clock.host_s[self.warmup_steps] >= seconds

    def _wait_for_others(self) -> None:
        """Continue when the parent has created the file `go`: when all jobs of the group have warmed up."""
        if self.torch.cuda.is_initialized():
            self.torch.cuda.synchronize()
        pathlib.Path(self.request["warm_path"]).touch()
        while not pathlib.Path(self.request["go_path"]).exists():
            time.sleep(0.005)

    # -- the run

    def run(self) -> NoReturn:
        """Run the script as Python would, and write the answer."""
        program = self.request["program"]
        try:
            sys.argv = [program["target"], *program["args"]]
            if program["kind"] == "module":
                sys.path.insert(0, str(pathlib.Path.cwd()))
                runpy.run_module(program["target"], run_name="__main__", alter_sys=True)
            else:
                sys.path.insert(0, str(pathlib.Path(program["target"]).resolve().parent))
                runpy.run_path(program["target"], run_name="__main__")
        except SystemExit as end:
            if end.code not in (None, 0) and not self.draining:
                self.finish("error", f"the script ended with {end.code!r}")
        except BaseException as error:
            self._raised(error)
        if not self.steps:
            self.finish("no-step", "the script ended without an optimizer step")
        if not self.draining:
            self.notes.append(f"the script ended after {self.steps} optimizer steps")
        self.finish("ok")

    def _raised(self, error: BaseException) -> NoReturn:
        if os.getpid() != self._pid:  # a worker process of a data loader reports its own error
            raise error
        traceback.print_exception(type(error), error, error.__traceback__)
        text = f"{type(error).__name__}: {first_line(error)}"
        if is_out_of_memory(error):
            self.finish("oom", text)
        if self.draining:
            self.notes.append(f"after training the script raised {text}")
            self.finish("ok")
        self.finish("error", text)

    # -- the answer

    def finish(self, outcome: str, message: str = "") -> NoReturn:
        """Write the answer, keep all memory until the parent has measured it, and exit."""
        if self._is_done or os.getpid() != self._pid:
            os._exit(0)
        self._is_done = True
        if outcome == "ok" and not self.torch.cuda.is_initialized():
            outcome, message = "no-cuda", "the script did not use CUDA"
        body: dict[str, Any] = {"outcome": outcome, "message": message, "steps": self.steps, "began_s": self.began_s}
        for part in (self._memory, self._times, self._versions, self._history):
            try:
                body.update(part())
            except Exception as error:
                self.notes.append(f"{part.__name__.strip('_')}: {type(error).__name__}: {first_line(error)}")
        body["notes"] = self.notes
        save(self.answer, body)
        sys.stdout.flush()
        sys.stderr.flush()
        hold()
        os._exit(0)

    def _memory(self) -> dict[str, Any]:
        cuda = self.torch.cuda
        if not cuda.is_initialized():
            return {"cuda": False}
        cuda.synchronize()
        self.meter.read()
        free_bytes, total_bytes = cuda.mem_get_info()
        stats = cuda.memory_stats()
        found: dict[str, Any] = {f"peak_{kind}_bytes": self.meter.peak(kind) for kind in KINDS}
        found.update(
            cuda=True,
            phases=self.meter.peaks,
            allocated_bytes=cuda.memory_allocated(),
            reserved_bytes=cuda.memory_reserved(),
            device_free_bytes=free_bytes,
            device_total_bytes=total_bytes,
            retries=stats.get("num_alloc_retries"),
            ooms=stats.get("num_ooms"),
            stats={key: value for key, value in stats.items() if ".all." in key or "." not in key},
        )
        return found

    def _times(self) -> dict[str, Any]:
        # The step after waiting for the other jobs includes the wait and does not count.
        warmup = self.warmup_steps + bool(self.request.get("barrier"))
        return {"step_ended_s": self.clock.ended_s(), "warmup_steps": warmup, "ended_s": time.time()}

    def _versions(self) -> dict[str, Any]:
        torch = self.torch
        found: dict[str, Any] = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
        for name in ("torchvision", "timm", "transformers", "accelerate", "peft", "lightning"):
            if name in sys.modules:
                found[name] = str(getattr(sys.modules[name], "__version__", "?"))
        if torch.cuda.is_initialized():
            properties = torch.cuda.get_device_properties(torch.cuda.current_device())
            found.update(
                gpu=properties.name,
                capability=[properties.major, properties.minor],
                sm_count=properties.multi_processor_count,
                torch_total_bytes=properties.total_memory,
            )
        return {"versions": found}

    def _history(self) -> dict[str, Any]:
        if not self.request.get("history_entries") or not self.torch.cuda.is_initialized():
            return {}
        memory = self.torch.cuda.memory
        snapshot = memory._snapshot()
        memory._record_memory_history(None)
        entries = snapshot["device_traces"][self.torch.cuda.current_device()]
        compact = load_sibling("probe_history").compact_history(entries, self.meter.marks)
        compact["is_cut"] = len(entries) >= self.request["history_entries"]
        with gzip.open(self.request["history_path"], "wt", encoding="utf-8") as file:
            json.dump(compact, file, separators=(",", ":"))
        found: dict[str, Any] = {"history_events": len(entries), "history_is_cut": compact["is_cut"]}
        if self.request.get("snapshot_path"):
            data = gzip.compress(pickle.dumps(snapshot))
            found["snapshot_bytes"] = len(data)
            if len(data) <= SNAPSHOT_LIMIT_BYTES:
                pathlib.Path(self.request["snapshot_path"]).write_bytes(data)
            else:
                self.notes.append(f"the snapshot takes {len(data)} bytes and was not saved")
        return found


def is_out_of_memory(error: BaseException) -> bool:
    """Whether it is an out-of-memory error of torch."""
    import torch

    return isinstance(error, torch.cuda.OutOfMemoryError) or "CUDA error: out of memory" in str(error)


def load_sibling(name: str) -> Any:
    """Load a module from a file beside this one; this folder is not on `sys.path`."""
    spec = importlib.util.spec_from_file_location(name, pathlib.Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None  # noqa: PT018 (no test)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def first_line(error: BaseException) -> str:
    """The first line of an error's text, at most 300 characters."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else "(no message)"


def save(path: pathlib.Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file atomically."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}.part")
    scratch.write_text(json.dumps(value))
    scratch.replace(path)


def hold() -> None:
    """Wait until the parent closes its end of a pipe, or exits."""
    with contextlib.suppress(OSError, KeyError, ValueError):
        os.read(int(os.environ["COTENANT_HOLD_FD"]), 1)


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent exits."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def main() -> None:
    """Run the request."""
    end_with_parent()
    sys.path.pop(0)
    request = json.loads(pathlib.Path(sys.argv[1]).read_text())
    probe = Probe(request, pathlib.Path(sys.argv[2]))
    probe.install()
    probe.run()


if __name__ == "__main__":
    main()
