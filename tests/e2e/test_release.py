"""The release: wheel and sdist are valid, and the wheel alone does what the README shows first."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

import cotenant

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300

for module in ("build", "hatchling"):
    pytest.importorskip(module, reason="needed to build the wheel; `make setup` installs it")


def run(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, **more)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the sdist, as a release builds them: the wheel from the sdist. Without isolation: offline."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), cwd=ROOT)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The environment of a process in a new virtual environment with the wheel, away from the checkout.

    Its dependencies are those of the environment of the tests, by a .pth file: nothing is downloaded.
    """
    folder = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    python = str(folder / "bin" / "python")
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    install = ("-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", str(built[0]))
    run(sys.executable, *install)
    ours = {sysconfig.get_path("purelib"), *(path for path in sys.path if path.endswith("-packages"))}
    (packages / "dependencies.pth").write_text("\n".join(sorted(ours)))
    home = tmp_path_factory.mktemp("home")
    shutil.copytree(ROOT / "examples", home / "examples")
    inherited = {name: os.environ[name] for name in ("LANG", "TMPDIR", "COTENANT_SYSTEM_CONFIG") if name in os.environ}
    return {
        **inherited,
        "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(home),
        "MANPATH": str(folder / "share" / "man"),
    }


def cli(env, *words):
    return run(str(Path(env["PATH"].partition(":")[0]) / "cotenant"), *words, env=env, cwd=env["HOME"])


def test_metadata_is_valid(built):
    pytest.importorskip("twine", reason="twine checks the metadata; `make setup` installs it")
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, built))


def test_wheel_has_the_man_page_the_completions_and_the_type_marker(built):
    with zipfile.ZipFile(built[0]) as archive:
        names = set(archive.namelist())
    data = f"cotenant-{cotenant.__version__}.data/data/share"
    assert f"{data}/man/man1/cotenant.1" in names
    assert f"{data}/bash-completion/completions/cotenant" in names
    assert "cotenant/py.typed" in names


def test_sdist_has_the_source_and_no_tests(built):
    with tarfile.open(built[1]) as archive:
        folders = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert {"src", "share", "pyproject.toml", "README.md", "LICENSE"} <= folders
    assert not {"tests", "benchmarks", ".ci"} & folders


def test_the_cli_runs_from_the_wheel(installed):
    python = str(Path(installed["PATH"].partition(":")[0]) / "python")
    where = run(python, "-c", "import cotenant; print(cotenant.__file__)", env=installed, cwd=installed["HOME"])
    assert str(ROOT) not in where
    assert cli(installed, "--version") == f"cotenant {cotenant.__version__}\n"


def readme(start):
    """The words of the first command in README.md that begins so, without `cotenant`."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    return shlex.split(next(line for line in lines if line.startswith(f"$ cotenant {start}")))[2:]


def test_first_estimate_of_the_readme(installed):
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("the script of the README needs torchvision")
    printed = cli(installed, *readme("estimate"))
    shown = (ROOT / "README.md").read_text(encoding="utf-8").partition("$ cotenant estimate ")[2].partition("```")[0]
    assert labels(printed) == labels(shown.partition("\n")[2])
    estimate = json.loads(cli(installed, *with_json(readme("estimate"))))  # from the cache
    assert estimate["device_bytes"] > estimate["peak_reserved_bytes"] > 0
    assert estimate["fit"]["verdict"] in ("fits", "tight", "unsure", "no")


def labels(answer):
    """What stands at the left of each line, without numbers, versions and where workspaces come from."""
    lines = re.sub(r"torch \S+|(?<=calls to cuDNN:).*", "", answer).splitlines()
    return sorted(re.sub(r"[\d.,]+( [KMG]iB)?", "#", re.split(r"\s{2,}", line.strip())[0]) for line in lines)


def with_json(words):
    place = words.index("--") if "--" in words else len(words)
    return [*words[:place], "--json", *words[place:]]


def test_first_job_of_the_readme(installed):
    cli(installed, *readme("daemon"))
    try:
        submitted = cli(installed, *with_json(readme("submit")))
        job = str(json.loads(submitted)["job"]["id"])
        deadline_s = time.monotonic() + TIMEOUT_S
        while json.loads(cli(installed, "show", job, "--json"))["job"]["state"] in ("PENDING", "STARTING"):
            assert time.monotonic() < deadline_s
            time.sleep(0.2)
        assert json.loads(cli(installed, "ls", "--json"))["jobs"][0]["state"] == "RUNNING"
        cli(installed, "cancel", "--all")
    finally:
        cli(installed, "daemon", "stop")


def test_first_replay_of_the_readme(installed):
    words = readme("simulate --trace")
    report = cli(installed, *words)
    assert report.startswith("t1: 60 jobs")
    assert "against exclusive" in report
    assert (Path(installed["HOME"]) / words[words.index("--report") + 1]).stat().st_size > 10_000
