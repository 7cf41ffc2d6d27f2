"""The client stays light: what `import cotenant` and `cotenant --help` load."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "starlette", "uvicorn", "pynvml", "rich")

IMPORT = "import cotenant"
HELP = """
import sys
from cotenant.cli.main import run
sys.argv = ["cotenant", "--help"]
try:
    run()
except SystemExit as end:
    assert not end.code, end.code
"""


@pytest.mark.parametrize("code", [pytest.param(IMPORT, id="import"), pytest.param(HELP, id="help")])
def test_loads_nothing_heavy(code):
    report = f"\nimport sys\nprint('LOADED', *sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code + report], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1].split() == ["LOADED"]


@pytest.mark.parametrize("module", ["cotenant.estimators.traced", "cotenant.tracing.process.session"])
def test_an_estimate_loads_no_events(module):
    """Their hundred classes take 20 ms in the process of the estimate, and again in the traced one."""
    code = f"import sys, {module}\nprint(*sorted({{'cotenant.core.events', 'cotenant.core.job'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


def test_import_loads_no_room():
    code = "import sys, cotenant\nprint(*sorted(name for name in sys.modules if name.startswith('cotenant.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []
