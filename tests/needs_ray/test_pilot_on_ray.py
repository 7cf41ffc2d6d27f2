"""The pilot on a real Ray: actors hold GPUs while jobs need them; nothing is lost when something is killed."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import tempfile
from pathlib import Path

import pytest

import ray_clusters
from cotenant.daemon.config.loader import tomllib
from cotenant.osutil import procfs
from gated_jobs import GATE, lines
from places import until
from running import is_running

ray = pytest.importorskip("ray", reason=ray_clusters.MISSING)
BIG = 30 * 2**30  # no two fit on a GPU of 40 GiB


@pytest.fixture(scope="module")
def nodes():
    """A cluster with two nodes of one simulated GPU each."""
    with (
        tempfile.TemporaryDirectory(prefix="ct-ray-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        ray_clusters.ray_cluster(*ray_clusters.gpu_nodes(Path(folder))) as cluster,
    ):
        yield cluster


@pytest.fixture
def root():
    """A folder whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="ct-ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextlib.contextmanager
def pilot_site(cluster, root, **settings):
    """A site whose allocations are gone afterwards."""
    with ray_clusters.pilot_site(root, cluster.address, **settings) as site:
        yield site
    until(lambda: not holders(), "no allocation is left")
    until(lambda: ray.available_resources().get("GPU", 0) == 2, "Ray has its GPUs back")


def holders():
    return [item["name"] for item in ray.util.list_named_actors(all_namespaces=True)]


def workers(root):
    """Workers of Ray with an actor of ours: an agent is a child of one."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            is_agent = words[2:3] == [b"cotenant.hosts.agent"]  # not its relay
            if is_agent and any(os.fsencode(root) in word for word in words):
                yield list(procfs.ancestors(int(path.parent.name)))[1].pid


def notes(site):
    return list((site.root / "state" / "cotenant" / "hosts" / "pilot").glob("*.json"))


def bridges(site):
    """Bridges of a site's daemon."""
    return [pid for pid, command in site.left_behind() if "cotenant.ray.bridge" in command]


def test_allocations_come_while_jobs_wait_and_go_when_nobody_needs_them(nodes, root):
    with pilot_site(nodes, root, idle_s=0.5) as site:
        site.start(simulate=None)
        ids = [site.submit(GATE.format(root / f"runs{number}"), declared_bytes=BIG) for number in range(2)]
        until(lambda: all(lines(root / f"runs{number}") for number in range(2)), "both run")
        assert len(holders()) == 2
        assert ray.available_resources().get("GPU", 0) == 0  # Ray gives them to nobody else
        servers = {gpu["server"].partition(".") for gpu in site.client.gpus()}
        assert {node for node, _, _ in servers} == {"r1", "r2"}
        listed = [allocation["job_id"] for allocation in site.client.status()["pilot"]["allocations"]]
        assert {actor for _, _, actor in servers} == set(listed)
        for number in range(2):
            (root / f"runs{number}.open").touch()
        assert [site.wait(job_id)["state"] for job_id in ids] == ["COMPLETED", "COMPLETED"]
        until(lambda: not holders() and not site.client.gpus() and not notes(site), "they are given back")
        assert list((root / "state" / "cotenant" / "hosts" / "pilot").glob("*.kept")) == []
        assert site.wait(site.submit("exit 3"))["exit_code"] == 3  # in a new one


def test_a_killed_worker_leaves_no_process_of_its_jobs_which_run_once_at_a_time(nodes, root):
    with pilot_site(nodes, root, max_allocations=1) as site:
        site.start(simulate=None)
        path = root / "runs"
        requeues = site.submit(GATE.format(path), requeue=True)
        does_not = site.submit(GATE.format(f"{path}2"), requeue=False)
        until(lambda: lines(path) and lines(Path(f"{path}2")), "both run")
        (worker,) = workers(root)
        os.kill(worker, signal.SIGKILL)
        until(lambda: len(lines(path)) == 2, "it runs again")
        assert not is_running(int(lines(path)[0]))
        view = site.client.wait(does_not, timeout_s=60)
        assert view["state"] == "LOST"
        assert "its allocation ended" in view["reason"]
        Path(f"{path}.open").touch()
        assert site.wait(requeues)["state"] == "COMPLETED"
        assert lines(Path(f"{path}.ends")) == ["end"]


def test_a_job_that_outlives_its_worker_is_not_started_again_before_it_has_ended(nodes, root):
    with pilot_site(nodes, root, max_allocations=1) as site:
        site.env["COTENANT_SCHEDULING__STOP_GRACE_S"] = "6"  # several turns of the pilot
        site.start(simulate=None)
        path = root / "runs"
        job_id = site.submit(f"trap '' TERM; {GATE.format(path)}", requeue=True)
        until(lambda: lines(path), "it runs")
        (worker,) = workers(root)
        os.kill(worker, signal.SIGKILL)
        until(lambda: len(lines(path)) == 2, "it runs again")
        assert not is_running(int(lines(path)[0]))
        Path(f"{path}.open").touch()
        assert site.wait(job_id)["state"] == "COMPLETED"


def test_a_killed_daemon_finds_its_allocations_again_and_requests_no_second_one(nodes, root):
    with pilot_site(nodes, root, max_allocations=1) as site:
        site.start(simulate=None)
        path = root / "runs"
        job_id = site.submit(GATE.format(path), declared_bytes=BIG)
        waits = site.submit("true", declared_bytes=BIG)
        until(lambda: lines(path), "it runs")
        held = holders()
        (bridge,) = bridges(site)
        site.kill()
        until(lambda: not is_running(bridge), "its bridge is gone")
        site.start(simulate=None)
        assert site.client.job(job_id)["state"] == "RUNNING"
        until(lambda: len(site.client.gpus()) == 1, "its host is heard of")
        Path(f"{path}.open").touch()
        assert [site.wait(item)["state"] for item in (job_id, waits)] == ["COMPLETED", "COMPLETED"]
        assert (holders(), len(lines(path))) == (held, 1)


def test_a_killed_bridge_and_a_killed_agent_are_started_again(nodes, root):
    with pilot_site(nodes, root, max_allocations=1) as site:
        site.start(simulate=None)
        path = root / "runs"
        job_id = site.submit(GATE.format(path))
        until(lambda: lines(path), "it runs")
        (bridge,) = bridges(site)
        os.kill(bridge, signal.SIGKILL)
        until(lambda: bridges(site) not in ([], [bridge]), "there is another one")
        fails = site.submit("echo out; echo err >&2; exit 3")
        assert site.wait(fails)["exit_code"] == 3
        assert b"".join(site.client.logs(fails, stream="stderr")) == b"err\n"
        Path(f"{path}.open").touch()
        assert site.wait(job_id)["state"] == "COMPLETED"
        assert (len(lines(path)), len(holders())) == (1, 1)


def test_an_allocation_without_a_note_ends_itself(nodes, root):
    with pilot_site(nodes, root, max_allocations=1) as site:
        site.start(simulate=None)
        path = root / "runs"
        site.submit(GATE.format(path))
        until(lambda: lines(path), "it runs")
        site.kill()
        (note,) = notes(site)
        note.unlink()
        until(lambda: not holders(), "it has ended")
        assert not is_running(int(lines(path)[0]))


def test_what_no_node_has_is_explained(nodes, root):
    with pilot_site(nodes, root, ray_options={"num_gpus": 4}) as site:
        site.start(simulate=None)
        waits = site.submit("true")
        until(lambda: "no node of the cluster has GPU 4" in str(site.client.job(waits)["reason"]), "it is explained")
        assert "is pending (no node of the cluster has GPU 4)" in site.cli("gpus").stderr
        site.client.cancel(waits)
        site.stop()


def test_the_documented_session_prints_what_the_page_shows(nodes, root):
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "use-with-ray.md").read_text()
    section = page.partition("## Let a daemon use the cluster")[2]
    shown = re.search(r"^```console\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[1]
    settings = tomllib.loads(re.search(r"^```toml\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[1])
    (host,) = re.findall(r"\br1\.[0-9a-f]{8}", shown)
    options = {**settings["pilot"].pop("ray")}
    with pilot_site(nodes, root, ray_options=options, **settings["pilot"]) as site:
        site.start(simulate=None)
        said = ""
        for line in re.findall(r"^\$ cotenant (.*)$", shown, re.MULTILINE):
            done = site.cli(*shlex.split(line))
            assert done.returncode == 0, (line, done.stderr)
            said += f"$ cotenant {line}\n{done.stdout}"
        (seen,) = re.findall(r"\br[12]\.[0-9a-f]{8}", said)
        assert said.replace(seen, host) == shown
        site.stop()
