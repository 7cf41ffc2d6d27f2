"""Starting the command line."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

INTERRUPTED_IMPORT = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            os.kill(os.getpid(), signal.SIGINT)

{before}
sys.meta_path.insert(0, Interrupting())
sys.argv = ["cotenant", "--version"]
from cotenant.__main__ import run
try:
    run()
finally:
    print({{signal.SIG_IGN: "ignored", signal.default_int_handler: "raised"}}[signal.getsignal(signal.SIGINT)])
"""


@pytest.mark.parametrize(
    ("module", "before", "code", "words"),
    [
        pytest.param("cotenant.cli.main", "", -signal.SIGINT, [], id="while it is imported, it ends"),
        pytest.param(
            "cotenant.cli.main", "signal.signal(signal.SIGINT, signal.SIG_IGN)", 0, ["ignored"], id="in the background"
        ),
        pytest.param("no such module", "", 0, ["raised"], id="never: commands handle it as usual"),
    ],
)
def test_ctrl_c_prints_no_traceback(module, before, code, words):
    script = INTERRUPTED_IMPORT.format(module=module, before=before)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout.split()[2:]) == (code, "", words)
