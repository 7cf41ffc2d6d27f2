"""Sizes of graph data sets, from the docstrings of their classes."""

from __future__ import annotations

from cotenant.tracing.data.graphs.published_graphs import GraphSize, published_size


class Planetoid:
    """Citation networks.

    .. list-table::
        :widths: 10 10 10 10 10
        :header-rows: 1

        * - Name
          - #nodes
          - #edges
          - #features
          - #classes
        * - Cora
          - 2,708
          - 10,556
          - 1,433
          - 7
        * - ...
          -
          -
          -
          -
    """

    def __init__(self, name: str) -> None:
        self.name = name


class PPI:
    """Graphs of proteins.

    .. list-table::
        :header-rows: 1

        * - #graphs
          - #nodes
          - #edges
          - #features
          - #tasks
        * - 20
          - ~2,245.3
          - ~61,318.4
          - 50
          - 121
    """


class Mine(Planetoid):
    """A data set of the script's own."""


class TUDataset:
    """Benchmarks."""

    name = "DD"


def test_the_row_of_the_name_is_taken():
    cora = GraphSize(nodes=2708, edges=10556, features=1433, classes=7)
    assert published_size(Planetoid("cora")) == published_size(Mine("Cora")) == cora
    assert str(cora) == "2,708 nodes, 10,556 edges, 1,433 features"


def test_means_are_rounded():
    assert published_size(PPI()) == GraphSize(nodes=2245, edges=61318, features=50, tasks=121, graphs=20)
    assert "20 graphs, each of the mean size: 2,245 nodes" in str(published_size(PPI()))


def test_a_size_that_no_docstring_has_is_in_a_table():
    assert published_size(TUDataset()) == GraphSize(nodes=284, edges=1431, features=89, classes=2, graphs=1178)


def test_other_names_and_objects_have_no_size():
    assert published_size(Planetoid("...")) is None
    assert published_size(Planetoid("pubmed")) is None
    assert published_size(object()) is None
