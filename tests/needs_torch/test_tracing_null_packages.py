"""Scripts that need a package which only reports, on a machine without it."""

import importlib.util
import os
import sys

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.core.errors import TraceError
from cotenant.tracing.process.program import Program
from cotenant.tracing.process.trace_script import trace_script
from traced_scripts import failing, trained

LOGGER = "tensorboard_logger"
A100 = {"name": "A100", "total_bytes": 40 * 2**30, "capability": (8, 0), "sm_count": 108, "count": 1}

pytestmark = pytest.mark.skipif(importlib.util.find_spec(LOGGER) is not None, reason=f"{LOGGER} is installed")


def test_a_script_that_logs_trains_like_one_that_does_not(tmp_path):
    logging = f"""
    import {LOGGER}
    from {LOGGER}.writer import Logger
    logger = Logger("runs", flush_secs=2)
    logger.log_value("loss", 1.0, step=3)
    """
    assert trained(tmp_path, logging, null_packages=(LOGGER,)).events == trained(tmp_path, "").events


def test_tensorboard_of_torch_goes_with_its_package(tmp_path):
    source = """
    import torch.utils.tensorboard
    from torch.utils.tensorboard.writer import SummaryWriter
    torch.utils.tensorboard.SummaryWriter("runs").add_scalar("loss", 1.0)
    assert not os.path.exists("runs")
    """
    trained(tmp_path, source, null_packages=("tensorboard",))


def test_events_of_tensorboard_are_not_written_by_tensorflow(tmp_path):
    compat = tmp_path / "tensorboard" / "compat"
    stub = compat / "tensorflow_stub"
    stub.mkdir(parents=True)
    (tmp_path / "tensorboard" / "__init__.py").touch()
    (compat / "__init__.py").write_text("tf = 'writes in C++'\n")
    (stub / "__init__.py").write_text("writes = 'in Python'\n")
    trained(tmp_path, "from tensorboard.compat import tf; assert tf.writes == 'in Python'")


def test_versions_of_packages_can_be_listed(tmp_path):
    source = f"""
    from importlib import metadata
    assert metadata.version("{LOGGER}") == "0"
    from importlib.metadata import version, PackageNotFoundError
    assert version("{LOGGER}") == "0"
    try:
        version("another-package")
    except PackageNotFoundError:
        pass
    """
    trained(tmp_path, source, null_packages=(LOGGER,))


def test_libraries_find_no_package(tmp_path):
    source = f"""
    import importlib.util
    assert importlib.util.find_spec("{LOGGER}") is None
    import {LOGGER}
    """
    trained(tmp_path, source, null_packages=(LOGGER,))


def test_the_absence_that_ends_a_script_is_marked(tmp_path):
    with failing("import", f"No module named '{LOGGER}'"):
        trained(tmp_path, f"import {LOGGER}")
    assert (tmp_path / "uninstalled").read_text() == LOGGER


def test_a_script_that_handles_the_absence_goes_its_own_way(tmp_path):
    source = f"""
    try:
        import {LOGGER}
    except ImportError:
        {LOGGER} = None
    assert {LOGGER} is None
    """
    trained(tmp_path, source)
    assert not (tmp_path / "uninstalled").exists()


def test_a_value_of_the_package_that_training_needs_is_an_error(tmp_path):
    source = f"import torch, {LOGGER}\ntorch.optim.SGD([torch.zeros(1).cuda()], lr={LOGGER}.config.lr)"
    with pytest.raises(TraceError, match=rf"`{LOGGER}` is not installed, and the value of `{LOGGER}.config.lr` is"):
        trained(tmp_path, source, null_packages=(LOGGER,))


def test_the_script_runs_again_without_the_package_and_a_warning_says_so(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        f"import {LOGGER}, torch\n"
        "w = torch.zeros(8, device='cuda', requires_grad=True)\n"
        "o = torch.optim.SGD([w], lr=0.1)\n"
        "for _ in range(4):\n"
        f"    w.sum().backward(); o.step(); {LOGGER}.log_value('loss', 1.0)\n"
    )
    program = Program(python=sys.executable, kind="script", target=str(script), args=())
    trace = trace_script(program, gpu=A100, workdir=str(tmp_path), env=os.environ)
    assert trace.warnings[0] == f"`{LOGGER}` is not installed: its calls did nothing in this trace"
    assert any(event.category == "parameter" for event in trace.events)
