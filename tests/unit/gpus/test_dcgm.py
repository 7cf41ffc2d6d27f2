"""DCGM's tables, and a `dcgmi` that prints them, ends, or is not there."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant import gpus
from cotenant.core.errors import BackendError
from cotenant.core.gpu import GpuSample
from cotenant.gpus.dcgm import DcgmActivityBackend, DcgmReader, DcgmReading, DmonTable, parse_discovery
from cotenant.gpus.nvml import NvmlBackend
from fake_pynvml import FakeDriver, FakeGpu
from running import is_running

GOLDEN = Path(__file__).parents[2] / "golden" / "dcgmi"
FIRST = "GPU-0a8f0f2e-1111-2222-3333-444455556666"
SECOND = "GPU-9b7e1d3c-aaaa-bbbb-cccc-ddddeeeeffff"
ACTIVE = DcgmReading(smact=0.812, smocc=0.401, drama=0.233)


def activity(smact, smocc, drama):
    return DcgmReading(smact=smact, smocc=smocc, drama=drama)


def rows_of(text):
    table = DmonTable()
    return [row for row in map(table.row, text.splitlines()) if row is not None]


def test_rows_of_dmon():
    assert rows_of((GOLDEN / "dmon.txt").read_text()) == [
        (0, activity(None, None, None)),
        (2, activity(None, None, None)),
        (0, ACTIVE),
        (2, activity(0.0, 0.0, 0.0)),
        (7, activity(0.111, 0.111, 0.111)),
        (0, activity(1.0, 0.42, 0.25)),
        (2, activity(0.1, 0.2, None)),
    ]


def test_rows_before_the_heading_are_ignored():
    assert rows_of("GPU 0  0.5  0.5  0.5\n") == []


def test_extra_columns_are_ignored_and_missing_ones_none():
    assert rows_of("#Entity  SMACT  POWER\nGPU 3  0.5  1.25") == [(3, activity(0.5, None, None))]


def test_every_heading_is_a_field():
    heading = "#Entity  GRACT  SMACT  SMOCC  TENSO  DRAMA  FP32A  PCITX  PCIRX"
    found = rows_of(f"{heading}\nGPU 0  0.9  0.8  0.7  0.6  0.5  0.4  3000000  4e9")
    assert found == [
        (0, DcgmReading(
            gract=0.9, smact=0.8, smocc=0.7, tensor=0.6, drama=0.5, fp32=0.4, pcie_tx_bytes_s=3e6, pcie_rx_bytes_s=4e9,
        )),
    ]  # fmt: skip


def test_a_blank_of_dcgm_is_no_transfer():
    assert rows_of("#Entity  PCITX  PCIRX\nGPU 0  140737488355328  N/A") == [(0, activity(None, None, None))]


def test_discovery_gives_uuids_by_dcgm_index():
    assert parse_discovery((GOLDEN / "discovery.txt").read_text()) == {0: FIRST, 2: SECOND}


@given(st.text(alphabet="#GPU 0123456789.NA/|-\n\tSMCTOR:Device", max_size=300))
def test_parsers_accept_any_text(text):
    for number, found in rows_of(text):
        assert number >= 0
        assert all(ratio is None or 0 <= ratio <= 1 for ratio in (found.smact, found.smocc, found.drama))
    parse_discovery(text)


@pytest.fixture
def dcgmi(tmp_path, monkeypatch):
    """A `dcgmi` on PATH that lists the golden GPUs and runs `dmon`, a piece of shell; the path of its starts."""

    def make(dmon, discovery=f"cat {GOLDEN}/discovery.txt"):
        program = tmp_path / "dcgmi"
        starts = tmp_path / "starts"
        starts.touch()
        program.write_text(
            f'#!/bin/sh\nif [ "$1" = discovery ]; then {discovery}; exit; fi\necho "$*" >> {starts}\n{dmon}\n'
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return starts

    return make


@pytest.fixture
def reader():
    made = []

    def make(**fields):
        made.append(DcgmReader(**fields))
        return made[-1]

    yield make
    for reader_ in made:
        reader_.close()


def until(condition):
    """Poll a condition that another thread brings about; the suite's own time limit ends it."""
    while not condition():
        time.sleep(0.005)


def test_the_newest_row_of_each_gpu_counts(dcgmi, reader):
    starts = dcgmi(f"cat {GOLDEN}/dmon.txt; exec cat")
    found = reader(now=lambda: 100.0)  # rows do not age, however slow the machine
    until(lambda: found.read().get(SECOND) == activity(0.1, 0.2, None))
    assert found.read() == {FIRST: activity(1.0, 0.42, 0.25), SECOND: activity(0.1, 0.2, None)}
    assert starts.read_text() == "dmon -e 1001,1002,1003,1004,1005,1007,1009,1010 -d 1000\n"


def test_stale_rows_are_not_used(dcgmi, reader):
    now_s = 100.0
    dcgmi(f"cat {GOLDEN}/dmon.txt; exec sleep 1000")
    found = reader(now=lambda: now_s)
    until(lambda: len(found.read()) == 2)
    now_s = 103.0
    assert len(found.read()) == 2
    now_s = 103.1
    assert found.read() == {}


def test_dcgmi_is_restarted_when_it_ends(dcgmi, reader):
    starts = dcgmi("printf '#E SMACT\\nGPU 0 0.5\\n'")
    reader(back_off_s=0.0)
    until(lambda: starts.read_text().count("dmon") >= 2)


def test_close_ends_dcgmi(dcgmi, tmp_path):
    dcgmi(f"echo $$ > {tmp_path}/pid; printf '#E SMACT\\nGPU 0 0.5\\n'; exec sleep 1000")
    found = DcgmReader()
    until(found.read)
    found.close()
    assert not is_running((tmp_path / "pid").read_text().strip())


@pytest.mark.parametrize(
    ("discovery", "message"),
    [
        ("echo 'Error: unable to establish a connection' >&2; exit 1", "unable to establish a connection"),
        ("echo '0 GPUs found.'", "0 GPUs found"),
        ("true", "no output"),
    ],
)
def test_dcgm_without_gpus_is_an_error(dcgmi, discovery, message):
    dcgmi("true", discovery)
    with pytest.raises(BackendError, match=message):
        DcgmReader()


def test_a_machine_without_dcgmi_is_an_error(tmp_path):
    with pytest.raises(BackendError, match="does not work"):
        DcgmReader(command=str(tmp_path / "none"))


class Fixed:
    """A backend with two samples, the second with activity of its own."""

    name = "fixed"
    closed = False

    def inventory(self):
        return ()

    def sample(self, at_s):
        return {FIRST: GpuSample(at_s=at_s), SECOND: GpuSample(at_s=at_s, smact=0.9)}

    def close(self):
        self.closed = True


def test_dcgm_fills_in_missing_activity_only(dcgmi, reader):
    dcgmi("printf '#E SMACT SMOCC DRAMA\\nGPU 0 0.812 0.401 0.233\\nGPU 2 0.1 0.1 0.1\\n'; exec sleep 1000")
    dcgm = reader(now=lambda: 100.0)
    until(lambda: len(dcgm.read()) == 2)
    inner = Fixed()
    both = DcgmActivityBackend(inner, dcgm)
    assert both.sample(5.0) == {
        FIRST: GpuSample(at_s=5.0, smact=0.812, smocc=0.401, drama=0.233),
        SECOND: GpuSample(at_s=5.0, smact=0.9),
    }
    both.close()
    assert inner.closed


@pytest.mark.parametrize(
    ("gpm", "wrapped"), [pytest.param(None, True, id="Ampere"), pytest.param((50.0, 40.0, 30.0), False, id="Hopper")]
)
def test_dcgm_is_used_where_nvml_has_no_activity(dcgmi, monkeypatch, gpm, wrapped):
    dcgmi("exec sleep 1000")
    monkeypatch.setitem(sys.modules, "pynvml", FakeDriver(FakeGpu(uuid=FIRST, gpm=gpm)))
    backend = gpus.create("nvml")
    try:
        assert isinstance(backend, DcgmActivityBackend) is wrapped
    finally:
        backend.close()


def test_nvml_works_without_a_dcgm_host_engine(dcgmi, monkeypatch):
    dcgmi("true", "exit 1")
    monkeypatch.setitem(sys.modules, "pynvml", FakeDriver(FakeGpu(uuid=FIRST)))
    backend = gpus.create("nvml")
    assert isinstance(backend, NvmlBackend)
    backend.close()
