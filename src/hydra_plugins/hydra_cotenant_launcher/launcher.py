"""Runs the jobs of a sweep on the daemon.

hydra imports this module at each start of each of its programs: submitit is imported when a sweep begins.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, filter_overrides, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

import hydra_plugins.hydra_cotenant_launcher._config  # noqa: F401 (registers it with hydra)

log = logging.getLogger(__name__)


class CotenantLauncher(Launcher):
    """Submits each job of a sweep to the daemon, and waits for their results.

    The launcher itself is the function that is submitted: it is pickled with the configuration.
    """

    def __init__(self, folder: str, max_num_timeout: int, **parameters: Any) -> None:
        self.folder = folder
        self.max_num_timeout = max_num_timeout
        self.parameters = {
            name: OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
            for name, value in parameters.items()
        }
        self.config: DictConfig | None = None
        self.hydra_context: HydraContext | None = None
        self.task_function: TaskFunction | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Called by hydra before `launch`."""
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run one job for each list of overrides; the answers are in their order.

        Raises:
            CotenantError: the daemon does not answer, or refuses one.
        """
        from cotenant.submitit import Executor

        assert self.config is not None
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        executor = Executor(self.folder, max_num_timeout=self.max_num_timeout)
        executor.update_parameters(**self.parameters)
        state = Singleton.get_state()
        calls = []
        for number, overrides in enumerate(job_overrides, start=initial_job_idx):
            log.info("\t#%d : %s", number, " ".join(filter_overrides(overrides)))
            calls.append((list(overrides), number, state))
        jobs = executor.map_array(self, *zip(*calls, strict=True))
        log.info("submitted as %s", ", ".join(job.job_id for job in jobs))
        return [_return_of(job, overrides) for job, (overrides, _, _) in zip(jobs, calls, strict=True)]

    def __call__(self, overrides: list[str], number: int, state: dict[type, Singleton]) -> JobReturn:
        """Run one job of the sweep; called in the job."""
        from cotenant.submitit import JobEnvironment

        assert self.config is not None
        assert self.hydra_context is not None
        assert self.task_function is not None
        Singleton.set_state(state)
        setup_globals()
        config = self.hydra_context.config_loader.load_sweep_config(self.config, overrides)
        with open_dict(config.hydra.job):
            config.hydra.job.id = JobEnvironment().job_id
            config.hydra.job.num = number
        done = run_job(
            hydra_context=self.hydra_context,
            task_function=self.task_function,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
        if done.status is JobStatus.FAILED:  # the daemon must see the exception, to run an out-of-memory one again
            raise done._return_value
        return done

    def checkpoint(self, *args: Any) -> Any:
        """The same call again: what the function saved in its folder is its checkpoint."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *args)


def _return_of(job: Any, overrides: list[str]) -> JobReturn:
    """What a job returned; a failure with its exception, which hydra raises when it reads the value."""
    error = job.exception()
    if error is None:
        done: JobReturn = job.result()
        return done
    return JobReturn(overrides=overrides, status=JobStatus.FAILED, _return_value=error)
