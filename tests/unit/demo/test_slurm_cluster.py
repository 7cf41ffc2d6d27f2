"""The ports of a Slurm in a folder."""

from __future__ import annotations

from pathlib import Path

from cotenant.demo.slurm_cluster import free_ports


def test_ports_are_not_among_those_that_the_kernel_gives_to_connections():
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    found = free_ports(50)
    assert len(set(found)) == 50
    assert not [port for port in found if first <= port <= last]
