"""Graphs of PyTorch Geometric and OGB that are not on this machine: as many nodes, edges and features as published.

Only data sets whose numbers and form are known: memory follows from both. Of many graphs, each has the mean size. Edges
join neighbors in a ring; masks have the sizes of the public split.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from cotenant.tracing.data.graphs.graph_forms import form_of, made_graph
from cotenant.tracing.data.graphs.published_graphs import GraphSize, published_size
from cotenant.tracing.patches.registry import Patch, Phase

_SHARES = {"train": 0.8, "val": 0.1, "valid": 0.1, "test": 0.1}
"""Of the graphs, by the name of the file of a part: assumed where a data set has several."""
_MAX_BYTES = 512 << 20
"""Of host memory for a file of graphs."""


class _MadeUpGraphs:
    """Data sets by the paths of the files that their classes would have processed."""

    def __init__(self, warn: Callable[[str, str], None]) -> None:
        self._warn = warn
        self._made: dict[str, Any] = {}

    def download(self, original: Any) -> Any:
        @functools.wraps(original)
        def download(dataset: Any) -> None:
            try:
                original(dataset)
            except (OSError, EOFError, RuntimeError):
                # Of `fsspec`, `aiohttp` or `urllib`; OGB asks whether to download; some are to be downloaded by hand.
                size, form = published_size(dataset), form_of(dataset)
                if size is None or form is None:
                    raise
                name = getattr(dataset, "name", type(dataset).__name__)
                self._warn(f"the graph data `{name}`", str(size))
                for path in dataset.processed_paths:
                    self._made[os.path.normpath(path)] = functools.partial(_loaded, dataset, path, size)

        return download

    def process(self, original: Any) -> Any:
        @functools.wraps(original)
        def process(dataset: Any) -> None:
            if not any(os.path.normpath(path) in self._made for path in dataset.processed_paths):
                original(dataset)

        return process

    def load(self, original: Any, *, as_dictionary: bool = False) -> Any:
        @functools.wraps(original)
        def load(file: Any, *args: Any, **kwargs: Any) -> Any:
            make = self._made.get(os.path.normpath(file)) if isinstance(file, str) else None
            return make(as_dictionary=as_dictionary) if make is not None else original(file, *args, **kwargs)

        return load


def patches(warn: Callable[[str, str], None]) -> list[Patch]:
    """Downloads and files of PyTorch Geometric's data sets, and the splits of OGB's."""
    made = _MadeUpGraphs(warn)
    common: dict[str, Any] = {
        "phase": Phase.DATA, "wraps": True, "reason": "It downloads the data.",
        "source": "torch_geometric/data/dataset.py, `Dataset.__init__`",
    }  # fmt: skip
    return [
        Patch(target="torch_geometric.data.dataset:Dataset._download", replacement=made.download, **common),
        Patch(target="torch_geometric.data.dataset:Dataset._process", replacement=made.process, **common),
        Patch(
            target="torch_geometric.io.fs:torch_load", replacement=functools.partial(made.load, as_dictionary=True),
            missing="before version 2.4", **common,
        ),
        Patch(target="torch:load", replacement=made.load, stacks=True, **common),
        Patch(
            target="ogb.nodeproppred:PygNodePropPredDataset.get_idx_split", replacement=_with_made_up_split, **common
        ),
    ]  # fmt: skip


def known_sample(dataset: Any) -> str | None:
    """A sample of `--synthetic-data` like the nodes of a data set that can be made up; None for another object."""
    size = published_size(dataset) if form_of(dataset) is not None else None
    return f"{max(size.features, 1)}:float32:{size.classes or size.tasks or 1}" if size else None


def _loaded(dataset: Any, path: str, size: GraphSize, *, as_dictionary: bool) -> tuple[Any, ...]:
    """What the file of a data set, or of its part, would hold.

    `as_dictionary`: as torch_geometric/data/in_memory_dataset.py, `load`, reads it since version 2.4.
    """
    form = form_of(dataset)
    assert form is not None
    graph = importlib.import_module("torch_geometric.data").Data(**made_graph(form, size))
    if getattr(dataset, "pre_transform", None) is not None:
        graph = dataset.pre_transform(graph)
    data, slices = _collated(dataset, graph, _number_of_graphs(dataset, path, graph, size), size.classes)
    sizes = {
        "num_node_attributes": size.node_attributes, "num_node_labels": size.features,
        "num_edge_attributes": 0, "num_edge_labels": size.edge_features,
    }  # fmt: skip
    extra = (sizes,) if hasattr(type(dataset), "num_node_attributes") else ()
    return (data.to_dict(), slices, *extra, type(data)) if as_dictionary else (data, slices, *extra)


def _number_of_graphs(dataset: Any, path: str, graph: Any, size: GraphSize) -> int:
    """Graphs in a file of a data set: memory of the GPU follows from a batch, so a large set is cut."""
    name = Path(path).name
    share = next((share for part, share in _SHARES.items() if name.startswith(part)), 1.0)
    one_bytes = sum(value.nbytes for _, value in graph if isinstance(value, torch.Tensor))
    return max(1, min(round(size.graphs * share), _MAX_BYTES // max(one_bytes, 1)))


def _collated(dataset: Any, graph: Any, count: int, classes: int) -> tuple[Any, Any]:
    """A graph many times, as the data set's class joins graphs; labels of graphs in turn."""
    if count == 1:
        return graph, None
    data, slices = dataset.collate([graph] * count)
    if classes > 1 and isinstance(data.y, torch.Tensor) and data.y.shape == (count,):
        data.y = torch.arange(count) % classes
    return data, slices


def _with_made_up_split(original: Any) -> Any:
    """Of OGB's shares of nodes, those of ogbn-arxiv: the files with the numbers of the nodes are missing."""

    @functools.wraps(original)
    def split(dataset: Any, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        try:
            return dict(original(dataset, *args, **kwargs))
        except OSError:
            return _split_of(dataset[0].num_nodes)

    return split


def _split_of(nodes: int) -> dict[str, torch.Tensor]:
    train, valid = int(0.54 * nodes), int(0.18 * nodes)
    order = torch.arange(nodes)
    return {"train": order[:train], "valid": order[train : train + valid], "test": order[train + valid :]}
