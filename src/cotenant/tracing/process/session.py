"""The tracing process: runs a script unchanged, on a GPU that is not there, and writes down its memory.

Ends by `os._exit`: autograd's device thread cannot be joined, and nothing of the script should run after the answer.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from cotenant.core.errors import TraceError, UsageError
from cotenant.core.trace import TraceHeader
from cotenant.core.units import format_duration
from cotenant.tracing import script_location
from cotenant.tracing.errors import Untraceable
from cotenant.tracing.process import deadline, launcher_env, script_traceback, serialization
from cotenant.tracing.process.provenance import with_provenance
from cotenant.tracing.process.serialization import USAGE
from cotenant.tracing.sandbox import overlay_hooks, restrictions
from cotenant.tracing.sandbox.overlay import Overlay, cache_folders, make_scratch

if TYPE_CHECKING:
    from cotenant.tracing.recorder import TraceRecorder

_LATER = "raise the limit with `--timeout`, or shorten what the script does before it trains"
_MAX_CAUSES = 20  # of one error, so that a circle of them ends
_answer_lock = threading.Lock()  # of the script's end and the deadline, one answers


def main(request_path: str, answer_path: str) -> NoReturn:
    """Trace what the request file asks for; the answer file holds a trace or an error."""
    answer = Path(answer_path)
    try:
        request = json.loads(Path(request_path).read_text())
        session = TracingSession(request, answer)
    except TraceError as error:
        answer_error(answer, error)
    except UsageError as error:
        answer_error(answer, as_trace_error(error))
    session.run(session.script)


def as_trace_error(error: UsageError) -> TraceError:
    """An option that only the tracing process can read, and could not; who asked raises it as it was."""
    return TraceError(USAGE, error.message, hint=error.hint)


def answer_error(answer: Path, error: TraceError) -> NoReturn:
    """Answer with an error; the process ends here."""
    _answer_lock.acquire()
    serialization.save(answer, {"error": serialization.error_to_dict(error)})
    _leave()


def _leave() -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _usable_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise TraceError(
            "missing-torch",
            f"`{sys.executable}` cannot import torch: {error}",
            hint="name the Python that runs the job with `--python`, or `pip install cotenant[torch]`",
        ) from error
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < (2, 4):
        raise TraceError(
            "unsupported", f"torch {torch.__version__} is too old to be traced", hint="torch 2.4 or newer is needed"
        )
    return torch


class TracingSession:
    """One script, from the patched start to the answer."""

    def __init__(
        self, request: dict[str, Any], answer: Path, *, recorder: Callable[[], TraceRecorder] | None = None
    ) -> None:
        self.request = request
        self.answer = answer
        deadline.start_deadline(request.get("deadline"), self._too_late, self._events)
        self.overlay = _enter_sandbox(request, answer)
        torch = _usable_torch()
        from cotenant.tracing.assumptions import moe_routing
        from cotenant.tracing.data import dataloader, synthetic_data
        from cotenant.tracing.device import (
            cuda_api,
            fake_tensor_attrs,
            legacy_tensor_types,
            libtorch_patch,
            null_profilers,
            rng,
        )
        from cotenant.tracing.device.memory_limit import MemoryLimit
        from cotenant.tracing.distributed import process_groups
        from cotenant.tracing.mode import TraceMode
        from cotenant.tracing.operators import (
            attention,
            flex_attention,
            linear_bias,
            losses,
            missing_cuda_kernels,
            nested_tensors,
            rnn,
        )
        from cotenant.tracing.patches import distributions, libraries, missing_weights
        from cotenant.tracing.recorder import TraceRecorder
        from cotenant.tracing.sandbox import torch_save
        from cotenant.tracing.training import deepcopy, torch_compile, torchscript
        from cotenant.tracing.training.training_observer import TrainingObserver

        program = request.get("program", {})
        launch = launcher_env.apply_launcher(request.get("launcher", ()), program, request["card"]["count"])
        if launch.more_args:
            program["args"] = [*program["args"], *launch.more_args]
        wanted = {**request["card"], "capability": tuple(request["card"]["capability"]), "count": launch.local}
        card = cuda_api.FakeGpuSpec(**wanted)
        libtorch_patch.install(card.count)
        self.recorder = (recorder or TraceRecorder)()
        self.recorder.header = replace(_header(torch, card), processes=launch.total)
        cuda_api.install(card, self.recorder)
        self.recorder.limit = MemoryLimit(
            self.recorder, card.allocator_bytes or card.total_bytes, card.count, card.total_bytes
        )
        missing_cuda_kernels.install()
        routes = attention.install(card.capability, cudnn_version=request["cudnn_version"])
        for each in (fake_tensor_attrs, libraries, missing_weights, torch_compile, torchscript, distributions):
            each.install(self.recorder)
        rng.install(card.count)
        flex_attention.install(self.recorder)
        nested_tensors.install(card.capability)
        deepcopy.install()
        groups = process_groups.install(self.recorder)
        routes |= rnn.install(self.recorder) | losses.install() | linear_bias.install()
        self.loop = TrainingObserver(self.recorder, steps=request["steps"], finish=self.finish)
        self.loop.install()
        dataloader.install(self.loop, request.get("lengths", ""))
        self.mode = TraceMode(self.recorder)
        self.mode.composites.update(routes)
        self.mode.enter_in_new_threads()
        missing_cuda_kernels.route_scalar_reads(self.mode)
        moe_routing.install(self.mode.known_values)
        self.mode.groups = groups
        torch_save.install(self.overlay)
        legacy_tensor_types.install()
        synthetic_data.install(request.get("synthetic_data", ()), self.recorder)
        null_profilers.install()

    def script(self) -> None:
        """Run the program of the request as Python itself would."""
        program = self.request["program"]
        sys.argv = [program["target"], *program["args"]]
        if program["kind"] == "module":
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(program["target"], run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(program["target"]).resolve().parent))
            # Python gives a script its `__file__` as an absolute path, and `sys.argv[0]` as it was written.
            vars(runpy)["_ModifiedArgv0"] = contextlib.nullcontext
            runpy.run_path(os.path.abspath(program["target"]), run_name="__main__")  # noqa: PTH100 - links stay

    def run(self, body: Callable[[], object]) -> NoReturn:
        """Call `body` and answer with its trace; the process ends here."""
        from cotenant.tracing.device import libtorch_patch

        header = self.recorder.header
        try:
            with self.mode:
                libtorch_patch.start_autograd_threads()
                self.mode.grad_accumulation.learn()
                self.recorder.reset(header)
                body()
        except SystemExit as stop:
            if stop.code not in (None, 0):
                self._failed(f"the script ended itself: {_exit_text(stop.code)}")
            self._ended()
        except BaseException as error:  # noqa: BLE001 - whatever a script raises is told, not handled
            self._raised(error)
        self._ended()

    def finish(self) -> NoReturn:
        """The trace is complete: answer and end the process, wherever the script is."""
        self._answer(partial=False)

    def _events(self) -> int:
        recorder: TraceRecorder | None = getattr(self, "recorder", None)
        return recorder.event_count if recorder is not None else 0

    def _too_late(self, timeout_s: float, place: str | None) -> NoReturn:
        """Answer in time, from a thread of its own, while the script goes on."""
        recorder: TraceRecorder | None = getattr(self, "recorder", None)  # importing torch may be what takes so long
        limit, at = format_duration(timeout_s), f"; it was at {place}" if place else ""
        if recorder is not None and recorder.steps:
            if self.loop.draining:
                recorder.warn(f"not all that comes after training was seen in {limit} (the `--timeout`){at}")
                self._answer(partial=False)
            self._failed(f"the script was stopped {limit} after it started (the `--timeout`){at}")
        why = ", without an optimizer step" if recorder is not None and recorder.cuda_used else ""
        told = TraceError("timeout", f"the script had not finished {limit} after it started{why}{at}", hint=_LATER)
        answer_error(self.answer, told)

    def _ended(self) -> NoReturn:
        if self.recorder.steps:
            self._answer(partial=False)
        if not self.recorder.cuda_used:
            raise_as = _without_gpu("the script ended without putting anything on a GPU")
        else:
            raise_as = TraceError(
                "no-step",
                "the script ended without an optimizer step",
                hint=self.loop.without_batches
                or "only training is estimated; does the script need options to train, after `--`?",
            )
        answer_error(self.answer, raise_as)

    def _raised(self, error: BaseException) -> NoReturn:
        script_traceback.print_script_traceback(error)
        told = f"{_describe(error)}{self.mode.host_reads.suspect(error)}"
        if self.loop.draining and isinstance(error, StopIteration):
            self._answer(partial=False)  # of a loader that was made to run dry
        if self.loop.draining:
            # What came after the training that was asked for: a validation, a checkpoint, a report.
            self.recorder.warn(f"not traced after training: the script raised {type(error).__name__}: {told}")
            self._answer(partial=False)
        if "fork-based multiprocessing" in str(error):
            # Of a function, traced in a fork: autograd's threads for a GPU are in the process that asks only.
            self._failed(
                "the process that asks has trained on a GPU before, so its functions cannot be traced",
                "unsupported",
                "estimate the function before anything is trained on a GPU, or a script",
            )
        if isinstance(error, Untraceable):
            self._failed(
                _describe(error), "unsupported", "say so to the authors of cotenant; `--estimator` names others"
            )
        from cotenant.tracing.data.synthetic_data import missing_data_hint

        hint = _hint(error) or missing_data_hint(error, self.request.get("synthetic_data", ()))
        self._failed(f"the script raised {type(error).__name__}: {told}", hint=hint)

    def _failed(self, sentence: str, kind: str = "raised", hint: str | None = None) -> NoReturn:
        if self.recorder.steps:
            count = self.recorder.steps
            self.recorder.warn(f"{sentence}, after {count} optimizer step{'s' if count != 1 else ''}")
            self._answer(partial=True)
        answer_error(
            self.answer,
            TraceError(kind, sentence, hint=hint or "run it with `--show-output` to see all that it prints"),
        )

    def _answer(self, *, partial: bool) -> NoReturn:
        if not self.recorder.cuda_used:
            # Its optimizer steps were on the CPU: 0 B and a context would be told of a job that has neither.
            answer_error(self.answer, _without_gpu("the script trains without putting anything on a GPU"))
        self.recorder.header = with_provenance(replace(self.recorder.header, libraries=_libraries()))
        self.loop.rare.warn()
        gc.disable()  # of all that is made here nothing goes, and looking for it would take half of the time
        trace = self.recorder.trace(partial=partial)
        _answer_lock.acquire()
        serialization.save(self.answer, {"trace": serialization.trace_to_dict(trace)})
        _leave()


def _enter_sandbox(request: dict[str, Any], answer: Path) -> Overlay:
    """Keep this process from changing anything that is not its own, and from the network, as the request says.

    What it writes goes below the request's `scratch`, by default beside the answer.
    """
    writes = not request.get("no_sandbox")
    scratch = Path(request.get("scratch") or answer.parent / "scratch")
    made = Overlay(str(scratch), captures_all=writes, free=serialization.output_paths(answer))
    if writes:
        make_scratch(scratch)
        sys.dont_write_bytecode = True
        fenced = restrictions.restrict_writes([str(answer.parent), "/dev", "/proc", *cache_folders(os.environ)])
        restrictions.restrict_calls(programs=not fenced, network=not request.get("online"))
    elif not request.get("online"):
        restrictions.restrict_calls(programs=False, network=True)
    overlay_hooks.install(made)
    return made


def _describe(error: BaseException) -> str:
    """What an error says, and where in the user's files it came from."""
    place = script_location.error_location(error)
    text = f"{_first_line(error)}{_cause(error)}"
    return f"{text} ({place})" if place else text


def _cause(error: BaseException) -> str:
    """What a failed import failed of: libraries that import late, such as transformers, raise an error of their own."""
    first = error
    for _ in range(_MAX_CAUSES if isinstance(error, ImportError) else 0):
        first = first.__cause__ or first
    told = _first_line(first)
    return "" if told in _first_line(error) else f": {told}"


def _hint(error: BaseException) -> str | None:
    """What to do about an error whose cause is the place it was run at."""
    if isinstance(error, ModuleNotFoundError):
        return "the script runs in the Python that estimates it: name the job's own with `--python PATH`"
    if isinstance(error, SyntaxError):
        version = ".".join(map(str, sys.version_info[:2]))
        return f"is it for another Python than {version}? name the job's own with `--python PATH`"
    if isinstance(error, OSError) and "CUDA_HOME" in str(error):
        return "it asks for the CUDA toolkit: set `CUDA_HOME` as the job has it"
    if isinstance(error, EOFError) and "reading a line" in str(error):
        return "it runs without input: nobody is there to answer it"
    return None


def _without_gpu(sentence: str) -> TraceError:
    return TraceError("no-cuda", sentence, hint="does it choose its device by an option, such as `-- --device cuda`?")


def _exit_text(code: object) -> str:
    return f"exit code {code}" if isinstance(code, int) else str(code)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else script_location.failed_assertion(error) or "(no message)")[:300]


def _header(torch: Any, card: Any) -> TraceHeader:
    return TraceHeader(
        torch_version=torch.__version__,
        torch_folder=str(Path(torch.__file__).parent),
        cuda_version=torch.version.cuda,
        python_version=".".join(map(str, sys.version_info[:3])),
        gpu=card.name,
        capability=card.capability,
        gpus=card.count,
        alloc_conf=os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or "",
        cublas_workspace_config=os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""),
    )


def _libraries() -> dict[str, str]:
    versions = {}
    for name in ("transformers", "timm", "torchvision", "lightning", "accelerate", "peft", "deepspeed"):
        module = sys.modules.get(name)
        if module is not None:
            versions[name] = str(getattr(module, "__version__", "?"))
    return versions
