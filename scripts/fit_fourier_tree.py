"""Fits the trees of weight gradients that cuDNN 9.20 computes by transforms on compute capability 8.6.

    python scripts/fit_fourier_tree.py measure --seed 1 --site SITE --file answers.csv.gz
    python scripts/fit_fourier_tree.py measure --seed 2 --drawn 20000 --near 0 --site SITE --file others.csv.gz
    python scripts/fit_fourier_tree.py judge --file answers.csv.gz --others others.csv.gz
    python scripts/fit_fourier_tree.py fit --file answers.csv.gz

`measure` queries the cuDNN in SITE, a folder of packages with a CUDA build of torch, for drawn shapes, then for shapes
near those that were computed so: of drawn ones it is one in a hundred. Answers depend on nothing but the shape: 6,000
are equal on an RTX 3060 and 3090. `judge` fits to a file and prints how many of another file's transforms are guessed
and suspected. `fit` writes the file of the package. Needs scikit-learn (the extra `learn`).
"""

from __future__ import annotations

import argparse
import gzip
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ask_cudnn import library
from convolution_shapes import CHANNELS, MAX_ELEMENTS, SIDES
from fit_cudnn_trees import TREES, joined
from sklearn.tree import DecisionTreeClassifier

from cotenant.estimators.cudnn.fourier import (
    ASSUMED,
    FORM,
    NO,
    SUSPECTED,
    WINOGRAD,
    YES,
    fourier_features,
    has_tiles,
    is_transformable,
    tile_bytes,
    transform_bytes,
)
from cotenant.estimators.cudnn.trees import read_trees

GPU = "RTX3060-12GB"
MIN_LEAF = 4
MIN_SUSPECTED_LEAF = 8
MIN_SUSPECTED = 0.1
"""Share of a leaf's shapes that are transformed."""
NEAR_WEIGHT = 0.1
CLOSE = 1e-3
BATCHES = (1, 1, 2, 2, 4, 4, 8, 8, 16, 16, 32, 32, 64, 128)
KERNELS = ((3, 70), (5, 10), (7, 8), (2, 3), (4, 3), (9, 3), (11, 3))

Numbers = tuple[int, ...]
"""Images, channels, height, width, output channels, kernel (2), padding (2); in a file also the workspace's bytes."""


def query_of(numbers: Sequence[int]) -> dict[str, Any]:
    """The query to cuDNN for a shape."""
    images, channels, height, width, out_channels, rows, columns, *padding = numbers[:9]
    outer = [height + 2 * padding[0] - rows + 1, width + 2 * padding[1] - columns + 1]
    return {
        "kind": "conv_wgrad",
        "dtype": "float32",
        "channels_last": False,
        "tf32": True,
        "deterministic": False,
        "x": [images, channels, height, width],
        "w": [out_channels, channels, rows, columns],
        "y": [images, out_channels, *outer],
        "stride": [1, 1],
        "padding": padding,
        "dilation": [1, 1],
    }


def drawn(rng: random.Random) -> Numbers:
    """A shape, at random."""

    def channels() -> int:
        chance = rng.random()
        if chance < 0.4:
            return rng.choice(CHANNELS)
        return 8 * rng.randint(1, 64) if chance < 0.6 else round(2 ** rng.uniform(0.5, 10))

    def side() -> int:
        return rng.choice(SIDES) if rng.random() < 0.3 else round(2 ** rng.uniform(2, 8.05))

    images = rng.choice(BATCHES) if rng.random() < 0.5 else round(2 ** rng.uniform(0, 7.5))
    names, weights = zip(*KERNELS, strict=True)
    rows = rng.choices(names, weights)[0]
    columns = rows if rng.random() < 0.95 else rng.choice((1, 3, 5))
    height = side()
    width = height if rng.random() < 0.75 else side()
    padding = (rows // 2, columns // 2) if rng.random() < 0.9 else (0, 0)
    return (images, channels(), height, width, channels(), rows, columns, *padding)


def near(numbers: Numbers, rng: random.Random) -> Numbers:
    """A shape that differs from another in one to three sizes."""
    images, channels, height, width, out_channels, rows, columns, *padding = numbers[:9]

    def moved(size: int, limit: int) -> int:
        other = round(size * 2 ** rng.uniform(-1, 1)) if rng.random() < 0.6 else size + rng.randint(-16, 16)
        return max(1, min(limit, other))

    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        which = rng.choice(("images", "channels", "channels", "out", "out", "height", "height", "width"))
        if which == "images":
            images = moved(images, 256)
        elif which == "channels":
            channels = moved(channels, 1024)
        elif which == "out":
            out_channels = moved(out_channels, 1024)
        elif which == "height":
            height, width = (moved(height, 256),) * 2 if width == height else (moved(height, 256), width)
        else:
            width = moved(width, 256) if rng.random() < 0.5 else width
    if rng.random() < 0.15:
        rows = columns = rng.choice((2, 3, 4, 5, 7, 9, 11))
        padding = [rows // 2, rows // 2]
    return (images, channels, height, width, out_channels, rows, columns, *padding)


def measure(gpu: str, site: Path, file: Path, seed: int, counts: tuple[int, int]) -> None:
    """Write shapes and cuDNN's workspaces: `counts` of drawn ones, and of those near transformed ones."""
    cudnn, rng = library(gpu, site), random.Random(seed)  # noqa: S311 - no secret depends on it
    found: list[Numbers] = []
    transformed: list[Numbers] = []
    while len(found) < sum(counts):
        is_drawn = len(found) < counts[0]
        numbers = drawn(rng) if is_drawn else near(rng.choice(transformed), rng)
        query = query_of(numbers)
        images, channels, *inner = query["x"]
        large = images * max(channels, query["w"][0]) * max(1, inner[0]) * max(1, inner[1]) >= MAX_ELEMENTS
        if large or min(query["y"][2:]) < 1 or not is_transformable(query):
            continue
        found.append((*numbers, next(iter(cudnn.workspaces(query)), -1)))
        if is_drawn and is_transformed(found[-1]):
            transformed.append(numbers)
    head = f"# cuDNN {cudnn.version} on a null {gpu}, seed {seed}"
    text = "\n".join([head, *(",".join(map(str, numbers)) for numbers in found), ""])
    file.write_bytes(gzip.compress(text.encode(), mtime=0))


def read(file: Path) -> tuple[str, list[Numbers]]:
    """The first line and the shapes of a file."""
    head, *lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    return head, [tuple(map(int, line.split(","))) for line in lines]


def is_transformed(numbers: Numbers) -> bool:
    """Whether cuDNN's workspace is that of transforms."""
    return abs(numbers[9] - transform_bytes(query_of(numbers))) <= CLOSE * numbers[9]


def is_tiled(numbers: Numbers) -> bool:
    """Whether cuDNN's workspace, of a shape that `has_tiles`, is that of Winograd's algorithm."""
    return abs(numbers[9] - tile_bytes(query_of(numbers))) <= CLOSE * numbers[9]


def text_of(head: str, shapes: Sequence[Numbers], counts: tuple[int, int]) -> str:
    """A file of the package, fitted to `shapes`, of which `counts` were drawn and are near transformed ones.

    Three trees: where Fourier transforms are assumed; where they are suspected, for which a drawn shape counts as much
    as ten others; and where Winograd's algorithm is assumed.
    """
    rows = [fourier_features(query_of(numbers)) for numbers in shapes]
    names = list(rows[0])
    table = np.array([list(row.values()) for row in rows], dtype=np.float32)
    answers = [is_transformed(numbers) for numbers in shapes]
    weights = [1.0] * counts[0] + [NEAR_WEIGHT] * counts[1]
    assumed = tree_text(names, DecisionTreeClassifier(min_samples_leaf=MIN_LEAF, random_state=0).fit(table, answers))
    model = DecisionTreeClassifier(min_samples_leaf=MIN_SUSPECTED_LEAF, random_state=0)
    suspected = tree_text(names, model.fit(table, answers, sample_weight=weights), MIN_SUSPECTED)
    places = [place for place, numbers in enumerate(shapes) if has_tiles(query_of(numbers))]
    model = DecisionTreeClassifier(min_samples_leaf=MIN_LEAF, random_state=0)
    winograd = tree_text(names, model.fit(table[places], [is_tiled(shapes[place]) for place in places]))
    lines = [f"{head}; {len(shapes)} shapes, scripts/fit_fourier_tree.py", f"{ASSUMED} {assumed}"]
    return "\n".join([*lines, f"{SUSPECTED} {suspected}", f"{WINOGRAD} {winograd}", ""])


def tree_text(names: Sequence[str], model: DecisionTreeClassifier, min_share: float = 0.5) -> str:
    """A tree as in a file: leaves say whether at least `min_share` of their shapes are transformed."""
    tree, tokens, todo = model.tree_, [], [0]
    has_two = len(model.classes_) == 2
    while todo:
        place = todo.pop()
        if tree.children_left[place] < 0:
            share = tree.value[place][0][-1] / tree.value[place][0].sum() if has_two else float(model.classes_[0])
            tokens.append(YES if share >= min_share else NO)
        else:
            tokens.append(f"{names[tree.feature[place]]}<={int(np.floor(tree.threshold[place]))}")
            todo += [tree.children_right[place], tree.children_left[place]]
    return joined(tokens)


def judge(file: Path, others: Path, counts: tuple[int, int]) -> None:
    """Print what trees of the shapes in `file` say of those in `others`."""
    trees, (head, shapes) = read_trees(text_of(*read(file), counts)), read(others)
    found: Counter[tuple[str, bool]] = Counter()
    for numbers in shapes:
        known = fourier_features(query_of(numbers))
        name = next((name for name in (ASSUMED, SUSPECTED) if trees.leaf(name, known) == YES), "neither")
        found[name, is_transformed(numbers)] += 1
    print(f"{head}: {len(shapes)} shapes")
    for name in (ASSUMED, SUSPECTED, "neither"):
        print(f"{name}: {found[name, True]} transformed, {found[name, False]} others")
    tiled = [n for n in shapes if has_tiles(query_of(n))]
    said = [(trees.leaf(WINOGRAD, fourier_features(query_of(n))) == YES, is_tiled(n)) for n in tiled]
    print(f"{WINOGRAD}: {said.count((True, True))} found, {said.count((False, True))} missed, "
          f"{said.count((True, False))} others")  # fmt: skip


def main() -> None:
    """Measure, judge or fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("measure", "judge", "fit"))
    parser.add_argument("--file", type=Path, required=True, help="of answers")
    parser.add_argument("--others", type=Path, help="of answers to judge by")
    parser.add_argument("--gpu", default=GPU, help="model of GPU to measure")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--drawn", type=int, default=60_000, help="shapes drawn at random")
    parser.add_argument("--near", type=int, default=60_000, help="shapes near those that were transformed")
    parser.add_argument("--site", type=Path, help="folder with torch and NVIDIA's wheels to measure")
    args = parser.parse_args()
    if args.step == "measure":
        if args.site is None:
            parser.error("`measure` needs --site")
        measure(args.gpu, args.site, args.file, args.seed, (args.drawn, args.near))
    elif args.step == "judge":
        if args.others is None:
            sys.exit("`judge` needs --others")
        judge(args.file, args.others, (args.drawn, args.near))
    else:
        text = text_of(*read(args.file), (args.drawn, args.near))
        target = TREES / f"sm86_{read(args.file)[0].split()[2]}_{FORM}.txt.gz"
        target.write_bytes(gzip.compress(text.encode(), mtime=0))
        print(target.name, target.stat().st_size, "bytes", text.count("<="), "nodes")


if __name__ == "__main__":
    main()
