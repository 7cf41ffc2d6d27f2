"""Submits Python functions to the daemon."""

from __future__ import annotations

import hashlib
import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from submitit.core import core
from submitit.core.utils import DelayedSubmission, JobPaths

from cotenant.daemon.client import Client
from cotenant.engines.slurm_environment import SECRETS, submitted_environment
from cotenant.submitit.environment import SIGNAL_DELAY_VARIABLE, CotenantJobEnvironment
from cotenant.submitit.job import CotenantJob
from cotenant.submitit.parameters import OWN, SIGNAL_DELAY_S, check_parameters, job_fields

TASK = "cotenant.submitit.task"
MAX_NAME_CHARS = 40
GiB = 2**30
_OF_A_JOB = re.compile(r"COTENANT_(JOB_ID|ATTEMPT|GPU_MEM_MIB|ARRAY_\w+|PROGRESS)")


class CotenantExecutor(core.PicklingExecutor):
    """Submits functions as jobs of the daemon on this machine, or of the one that $COTENANT_HOST names.

    Every call is a job of its own, estimated by itself: the tasks of a sweep over batch sizes need different amounts
    of memory. Those of `map_array` and of a `batch()` are submitted together, all or none.

    `folder`: for pickles and output; `%j` in it is the id of the job. `max_num_timeout`: how often a function with a
    checkpoint is requeued at its time limit. `max_pickle_size_gb`: of one submission. `python`: command of the
    interpreter, by default this one.

    Source: submitit 1.5, core/core.py, `PicklingExecutor`.
    """

    job_class = CotenantJob

    def __init__(
        self,
        folder: Path | str,
        max_num_timeout: int = 3,
        max_pickle_size_gb: float = 1.0,
        python: str | None = None,
    ) -> None:
        super().__init__(folder, max_num_timeout=max_num_timeout, max_pickle_size_gb=max_pickle_size_gb)
        self.python = shlex.quote(sys.executable) if python is None else python

    @classmethod
    def affinity(cls) -> int:
        """0: `AutoExecutor` takes it only by its name, never because a daemon happens to be there."""
        return 0

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return set(OWN)

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        super()._internal_update_parameters(**check_parameters(kwargs))

    def _internal_process_submissions(self, delayed_submissions: Sequence[DelayedSubmission]) -> list[core.Job[Any]]:
        """Submit all calls, or none.

        Raises:
            CotenantError: the daemon does not answer, or refuses one.
            RuntimeError: the pickles are larger than `max_pickle_size_gb`.
        """
        folder = JobPaths.get_first_id_independent_folder(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        pickles = [self._pickled(call, folder) for call in delayed_submissions]
        size_gb = sum(path.stat().st_size for path in set(pickles)) / GiB
        if size_gb > self.max_pickle_size_gb:
            for path in set(pickles):
                path.unlink()
            raise RuntimeError(
                f"{len(pickles)} pickles of function and arguments have {size_gb:.2f} GiB, wanted at most "
                f"{self.max_pickle_size_gb:g}: pass paths of large data, or raise max_pickle_size_gb"
            )
        client = Client()
        views = client.submit([self._body(*pair) for pair in zip(delayed_submissions, pickles, strict=True)])
        jobs = []
        for view, path in zip(views, pickles, strict=True):
            job: CotenantJob[Any] = self.job_class(folder=self.folder, job_id=str(view["id"]))
            _prepare(path, job.paths)
            jobs.append(job)
        client.change_many("release", [job.job_id for job in jobs])
        return jobs

    def _pickled(self, call: DelayedSubmission, folder: Path) -> Path:
        """The file with the pickled call, named by its content: equal calls are the same workload to the daemon."""
        call.set_timeout(self.parameters.get("timeout_min", math.inf), self.max_num_timeout)
        partial = folder / f".{os.getpid()}.pkl"
        call.dump(partial)
        digest = hashlib.sha256(partial.read_bytes()).hexdigest()[:16]
        return partial.rename(folder / f"{_name_of(call)}-{digest}.pkl")

    def _body(self, call: DelayedSubmission, path: Path) -> dict[str, Any]:
        """The job that runs a call, for the daemon: held until its files are in place."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name not in SECRETS and not name.startswith("SUBMITIT_") and not _OF_A_JOB.fullmatch(name)
        }
        workdir = str(Path.cwd())
        env = submitted_environment(inherited, "job", folder=workdir, tasks=None, cpus_per_task=None)
        paths = JobPaths(_escaped(self.folder))
        stdout = str(paths.folder / "%j_%t_log.out")
        to_stdout = self.parameters.get("stderr_to_stdout", False)
        return {
            **job_fields(self.parameters),
            "command": [*shlex.split(self.python), "-u", "-m", TASK, str(path), str(self.folder)],
            "workdir": workdir,
            "env": {
                **env,
                "SUBMITIT_EXECUTOR": CotenantJobEnvironment.name(),
                SIGNAL_DELAY_VARIABLE: str(self.parameters.get("signal_delay_s", SIGNAL_DELAY_S)),
            },
            "name": self.parameters.get("name", _name_of(call)),
            "stdout_path": stdout,
            "stderr_path": stdout if to_stdout else str(paths.folder / "%j_%t_log.err"),
            "hold": True,
        }

    # What `PicklingExecutor` declares for those that submit by a command.

    def _num_tasks(self) -> int:
        return 1

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        raise NotImplementedError("a function is submitted by a request, not by a file")

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        raise NotImplementedError("a function is submitted by a request, not by a command")

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> str:
        raise NotImplementedError("a function is submitted by a request, not by a command")


def _prepare(path: Path, paths: JobPaths) -> None:
    """Make the pickled call at `path` that of a job; files of an older daemon's job with this id go."""
    paths.folder.mkdir(parents=True, exist_ok=True)
    paths.result_pickle.unlink(missing_ok=True)
    paths.submitted_pickle.unlink(missing_ok=True)
    try:
        os.link(path, paths.submitted_pickle)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, paths.submitted_pickle)


def _name_of(call: DelayedSubmission) -> str:
    """Name of the function, or of its class, of characters that are safe in file names."""
    function = call.function
    name = getattr(function, "__name__", None) or type(function).__name__
    return (re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "function")[:MAX_NAME_CHARS]


def _escaped(folder: Path) -> str:
    """`folder` with `%` doubled where submitit would not replace it, and the daemon would."""
    return re.sub(r"%(?![jtAa])", "%%", str(folder))
