"""The program of a job: runs a pickled call and pickles its result. `python -m cotenant.submitit.task PICKLE FOLDER`.

Without a job around it, which is how its memory is estimated, it makes the call and no more.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from submitit.core.submission import process_job
from submitit.core.utils import DelayedSubmission

from cotenant.submitit.environment import JOB_ID_VARIABLE, CotenantJobEnvironment


def run(pickle: Path, folder: str) -> None:
    """Run the call of this job, from its newest checkpoint if there is one."""
    os.environ["SUBMITIT_FOLDER"] = folder
    if JOB_ID_VARIABLE not in os.environ:
        os.environ[JOB_ID_VARIABLE] = "0"
        DelayedSubmission.load(pickle).result()
        return
    # An attempt that ran out of memory left its exception there; this one has more.
    CotenantJobEnvironment().paths.result_pickle.unlink(missing_ok=True)
    process_job(folder)


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2])
