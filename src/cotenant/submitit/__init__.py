"""submitit on a shared GPU server: Python functions as jobs of the daemon.

`Executor` takes the place of submitit's executors, and `submitit.AutoExecutor(folder, cluster="cotenant")` makes one:
submitit finds it by an entry point. Both need the package `submitit`, which the extra of that name installs.
"""

from __future__ import annotations

try:
    import submitit as _submitit  # noqa: F401
except ImportError as error:
    raise ImportError("cotenant.submitit needs submitit: pip install 'cotenant[submitit]'") from error

from cotenant.submitit.environment import CotenantJobEnvironment as JobEnvironment
from cotenant.submitit.executor import CotenantExecutor as Executor
from cotenant.submitit.job import CotenantJob as Job

__all__ = ["Executor", "Job", "JobEnvironment"]
