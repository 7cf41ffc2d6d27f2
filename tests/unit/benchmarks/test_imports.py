"""Every benchmark imports: most run by hand, months apart, and a module that has moved would be found then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
JOBS = ROOT / "benchmarks" / "estimator" / "jobs"
"""Scripts that are traced in a process of their own, some with packages that are not installed here."""

IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("benchmarks", "cotenant"):
            print(name, error)
    except Exception as error:
        print(name, repr(error))
"""


def test_benchmarks_import():
    paths = (path.relative_to(ROOT) for path in (ROOT / "benchmarks").rglob("*.py") if JOBS not in path.parents)
    names = sorted(".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths)
    assert len(names) > 50
    command = [sys.executable, "-c", IMPORT_ALL, *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0), done.stderr
