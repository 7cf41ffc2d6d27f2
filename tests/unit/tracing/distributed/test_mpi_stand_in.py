"""What scripts ask of MPI behind `mpiexec`, retyped small, for rank 0 of several processes."""

from __future__ import annotations

import sys

import pytest

from cotenant.tracing.distributed import mpi_stand_in


@pytest.fixture
def mpi(monkeypatch):
    for name in ("mpi4py", "mpi4py.MPI"):
        monkeypatch.setitem(sys.modules, name, None)
    mpi_stand_in.install(8, 4)
    from mpi4py import MPI

    return MPI


def test_a_batch_is_divided_by_the_number_of_processes(mpi):
    comm = mpi.COMM_WORLD
    assert (comm.rank, comm.Get_rank(), comm.size, comm.Get_size()) == (0, 0, 8, 8)
    assert comm.bcast("localhost", root=0) == "localhost"
    assert comm.Split_type(mpi.COMM_TYPE_SHARED).size == 4
    assert comm.gather(3) == [3] * 8
    assert comm.scatter([1, 2]) == 1
    comm.Barrier()


def test_sums_are_of_equal_values(mpi):
    numpy = pytest.importorskip("numpy")
    comm, total = mpi.COMM_WORLD, numpy.zeros(2)
    assert comm.allreduce(2, op=mpi.SUM) == 16
    assert comm.allreduce(2, op=mpi.MAX) == 2
    comm.Allreduce(numpy.ones(2), total, op=mpi.SUM)
    assert total.tolist() == [8, 8]
    comm.Allreduce(mpi.IN_PLACE, total, op=mpi.SUM)
    everyone = numpy.zeros((8, 2))
    comm.Allgather(numpy.ones(2), everyone)
    assert everyone.sum() == 16
