"""The process of a script on a null GPU: runs it unchanged, and answers with PyTorch's own memory history.

Kernels are compiled and launched, and nothing is computed. The sandbox, the launcher and the process groups are those
of a trace (`tracing.process.session`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch

from cotenant.core.errors import TraceError
from cotenant.core.ports import TraceOptions
from cotenant.core.trace import MemoryTrace, NcclUsage, TraceHeader
from cotenant.core.units import format_bytes, format_duration
from cotenant.tracing.cuda_build import ddp, extension_builds, kernel_tuning
from cotenant.tracing.cuda_build.epoch_end import epoch_patches
from cotenant.tracing.cuda_build.extension_builds import ExtensionBuilds, narrow_architectures
from cotenant.tracing.cuda_build.memory_history import events_of
from cotenant.tracing.cuda_build.observer import MAX_ENTRIES, CudaBuildObserver
from cotenant.tracing.cuda_build.unknown_values import UnknownValues
from cotenant.tracing.data import missing_folders
from cotenant.tracing.data.missing_data_hints import missing_data_hint
from cotenant.tracing.distributed import local_rank_option
from cotenant.tracing.distributed.nccl_groups import NcclGroups
from cotenant.tracing.distributed.process_groups import group_patches
from cotenant.tracing.patches import deepspeed
from cotenant.tracing.patches.catalog import absence_patches
from cotenant.tracing.patches.libraries import saving_patches, tracker_patches
from cotenant.tracing.patches.registry import AbsenceContext, PatchTable
from cotenant.tracing.process import deadline, launcher_env, package_hints, serialization, session
from cotenant.tracing.process.provenance import with_provenance
from cotenant.tracing.process.run_program import run_program
from cotenant.tracing.process.script_traceback import describe, print_script_traceback
from cotenant.tracing.sandbox import torch_save
from cotenant.tracing.sandbox.overlay import Overlay
from cotenant.tracing.sensors.nvidia_smi import uuid_of
from cotenant.tracing.training import lbfgs
from cotenant.tracing.training.library_validations import validation_patches

_MAX_PLACES = 3
_MIN_TORCH = (2, 8)
"""The oldest that was tried."""


class EnoughSteps(BaseException):
    """Enough steps were seen. Not an `Exception`, so that a script's own handlers let it pass."""


class CudaBuildSession:
    """One script on the null GPU, in the sandbox, from the patches to the answer.

    Attributes:
        header: of the trace; `process_groups` and `NcclGroups` write to it, as to a recorder's.
    """

    def __init__(self, request: dict[str, Any], answer: Path, patches: PatchTable, overlay: Overlay) -> None:
        if tuple(int(part) for part in torch.__version__.split(".")[:2]) < _MIN_TORCH:
            message = f"no null GPU: torch {torch.__version__} is too old, wanted 2.8 or newer"
            raise TraceError("unsupported", message, hint="use `--backend trace`")
        self.request, self.answer, self.overlay = request, answer, overlay
        self.options: TraceOptions = session.options_of(request)
        self.observer = CudaBuildObserver(self.options.steps, self._finish)
        self.builds = ExtensionBuilds()
        deadline.start_deadline(
            request.get("deadline"), self._too_late, lambda: self.observer.counts()[0],
            lambda: self.steps + self.builds.count, answer.with_name(serialization.RENEWED),
        )  # fmt: skip
        program = request["program"]
        launch = launcher_env.apply_launcher(request.get("launcher", ()), program, 1)
        # Both are read at the first use of CUDA. A real driver, loaded by its path, has no GPU of these names.
        os.environ["COTENANT_NULL_GPU"] += f";device_count={launch.local}"
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(uuid_of, range(launch.local)))
        if self.options.sandbox:  # it keeps what the script starts from real GPUs; that has the script's variables
            launcher_env.show_visible_devices(request.get("visible_devices"))
        program["args"] = [*launch.more_args, *program["args"]]
        gpu: Mapping[str, Any] = request["gpu"]
        narrow_architectures(os.environ, tuple(gpu["capability"]))
        self.header: TraceHeader = replace(
            session.header_of(torch, gpu["name"], tuple(gpu["capability"]), 1),
            processes=launch.total,
            backend="null-gpu",
        )
        self.values = UnknownValues(self)
        patches.add(self.observer.patches())
        patches.add(epoch_patches(self.observer.progress))
        patches.add(validation_patches(self.observer.progress))
        patches.add(deepspeed.step_patches(self.observer))
        patches.add(lbfgs.step_patches())
        patches.add(self.values.patches())
        patches.add(self.builds.patches())
        patches.add(kernel_tuning.patches())
        patches.add(torch_save.path_patches(overlay))
        context = AbsenceContext(options=self.options, recorder=self, overlay=overlay)
        patches.add(absence_patches(context))
        patches.add(saving_patches())
        patches.add(tracker_patches())
        patches.add(local_rank_option.patches(context))
        if torch.distributed.is_available():
            patches.add([*group_patches(self, NcclGroups(self)), *ddp.patches()])
        patches.apply()
        self.observer.start()

    @property
    def steps(self) -> int:
        """Optimizer steps so far, of all optimizers."""
        return self.observer.steps

    def warn(self, sentence: str) -> None:
        """Add a warning, once."""
        self.observer.warn(sentence)

    def run(self) -> NoReturn:
        """Run the script and answer; the process ends here."""
        try:
            if self.options.synthetic_data:
                missing_folders.make_missing(self.overlay, self.request["program"]["args"])
            run_program(self.request["program"])
        except EnoughSteps:
            self._answer(partial=False)
        except SystemExit as stop:
            if stop.code not in (None, 0):
                self._failed("raised", f"the script exited: {session.exit_text(stop.code)}")
        except BaseException as error:  # noqa: BLE001 - whatever a script raises goes into the answer
            self._raised(error)
        self._ended()

    def _finish(self) -> NoReturn:
        raise EnoughSteps

    def _ended(self) -> NoReturn:
        if self.steps:
            self._answer(partial=False)
        progress = self.observer.progress
        if not self.observer.is_recording:
            session.answer_error(self.answer, session.without_gpu(serialization.ENDED_WITHOUT_GPU))
        # Calls of models are not seen here, so of a script with an optimizer it is not known what ended it.
        if not progress.schedule.has_optimizer and progress.warn_without_training():
            self._answer(partial=False)
        message = "the script ended without an optimizer step in its first process"
        hint = progress.empty_loader_reason or session.NO_STEP_HINT
        session.answer_error(self.answer, TraceError("no-step", message, hint=hint))

    def _raised(self, error: BaseException) -> NoReturn:
        session.mark_uninstalled(error, self.answer)
        print_script_traceback(error)
        if isinstance(error, torch.OutOfMemoryError):
            raise_again = TraceError("out-of-memory", f"the script ran out of memory: {describe(error)}")
            session.answer_error(self.answer, raise_again)
        if self.observer.progress.has_trained:
            self.observer.progress.warn_after_training(error, describe(error))
            self._answer(partial=False)
        places = list(self.values.places)[-_MAX_PLACES:]
        suspects = f"; maybe because of values that a null GPU does not compute, read at {', '.join(places)}"
        kind = "import" if isinstance(error, (ImportError, SyntaxError)) else "raised"
        sentence = f"the script raised {type(error).__name__}: {describe(error)}{suspects if places else ''}"
        hint = package_hints.environment_hint(error) or missing_data_hint(error, self.options.synthetic_data)
        self._failed(kind, sentence, hint)

    def _failed(self, kind: str, sentence: str, hint: str | None = None) -> NoReturn:
        if self.steps:
            self.warn(f"{sentence}, after {self.steps} optimizer step{'s' if self.steps != 1 else ''}")
            self._answer(partial=True)
        hint = hint or "run it with `--show-output` to see its whole output"
        session.answer_error(self.answer, TraceError(kind, sentence, hint=hint))

    def _too_late(self, timeout_s: float, place: str | None) -> NoReturn:
        """Answer before the timeout, from a thread of its own, while the script still runs."""
        limit, at = format_duration(timeout_s), f"; it was at {place}" if place else ""
        if self.observer.progress.has_trained:
            self.warn(f"the work after training was not run to its end within {limit} (`--timeout`){at}")
            self._answer(partial=False)
        if self.steps:
            self.warn(f"the script was stopped {limit} after it started (`--timeout`){at}")
            self._answer(partial=True)
        hint = "raise the limit with `--timeout`; compiling takes minutes, and a second estimate finds it in the cache"
        message = f"the script had not finished its first step {limit} after it started{at}"
        if self.builds.name:
            message, hint = (
                f"the extension `{self.builds.name}` was not built within {limit}{at}",
                extension_builds.HINT,
            )
        session.answer_error(self.answer, TraceError("timeout", message, hint=hint))

    def _answer(self, *, partial: bool) -> NoReturn:
        if not self.observer.is_recording:
            error = session.without_gpu("the script trains without putting anything on a GPU")
            session.answer_error(self.answer, error)
        session.answer_trace(self.answer, self._trace(partial=partial))

    def _trace(self, *, partial: bool) -> MemoryTrace:
        self.observer.name_modules()
        self.observer.progress.conditional_work.warn()
        for sentence in self.overlay.warnings():
            self.warn(sentence)
        reserved = torch.cuda.max_memory_reserved()
        history = torch.cuda.memory._snapshot()["device_traces"][0]
        has_oom = any(entry["action"] == "oom" for entry in history)
        events = events_of(history, self.observer.marks, self.observer.names)
        if len(history) >= MAX_ENTRIES:
            self.warn(f"only the last {MAX_ENTRIES:,} entries of the memory history are in the estimate")
            partial = True
        if self.values.places:
            places = ", ".join(list(self.values.places)[:_MAX_PLACES])
            self.warn(f"values that a null GPU does not compute were read and assumed, first at {places}")
        if kernel_tuning.has_tuned():
            self.warn(kernel_tuning.TUNED)
        outside_bytes = self.values.driver.null_outside_bytes()
        self._warn_of_other_memory(outside_bytes)
        header = replace(
            self.header,
            steps=self.steps,
            nccl=self.header.nccl or self._nccl(),
            oom_raised=has_oom,
            counted_reserved_bytes=reserved,
            outside_bytes=outside_bytes,
            libraries=session.library_versions(),
        )
        header = with_provenance(header)
        return MemoryTrace(
            events=tuple(events),
            ops=(),
            header=replace(header, sources=_written_by_people(header.sources or ())),
            warnings=tuple(self.observer.warnings),
            partial=partial,
        )

    def _warn_of_other_memory(self, outside_bytes: int) -> None:
        """Warn of what the memory history does not show: other code's calls of the driver, and managed memory."""
        driver = self.values.driver
        if outside_bytes:
            file = Path(os.fsdecode(driver.null_outside_file())).name
            self.warn(
                f"{format_bytes(outside_bytes)} were allocated outside of PyTorch's allocator"
                f"{f' by {file}' if file else ''}; they are counted beside the CUDA context, as if at all times"
            )
        managed_bytes = driver.null_managed_bytes()
        if managed_bytes:
            self.warn(
                f"{format_bytes(managed_bytes)} of managed memory (`cudaMallocManaged`) are not counted: its pages are "
                "on the GPU only while they are used there"
            )

    def _nccl(self) -> NcclUsage | None:
        """The group of all processes, where only compiled code communicates."""
        count = self.header.processes or 1
        return NcclUsage(group_sizes=(count,)) if count > 1 else None


def _written_by_people(sources: tuple[tuple[str, str | None], ...]) -> tuple[tuple[str, str | None], ...]:
    """`sources` without those that Inductor and Triton generated, which are new in each run."""
    folders = [os.environ.get(name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")]
    generated = tuple(f"{folder}/" for folder in (*folders, tempfile.gettempdir()) if folder)
    return tuple(source for source in sources if not source[0].startswith(generated))
