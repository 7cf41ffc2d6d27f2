"""Fits the trees of weight gradients of depthwise convolutions in channels-last layout to cuDNN's answers.

    python scripts/fit_depthwise_trees.py measure --gpu H100-80GB --site SITE --folder measured
    python scripts/fit_depthwise_trees.py judge --folder measured
    python scripts/fit_depthwise_trees.py fit --folder measured

`measure` queries the cuDNN in SITE, a folder of packages with a CUDA build of torch, for drawn shapes in float32 with
TF32: some seconds. `judge` fits to four fifths of the shapes and prints how many of the others are within 2 %. `fit`
writes the files of the package. Needs scikit-learn (the extra `learn`).
"""

from __future__ import annotations

import argparse
import gzip
import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ask_cudnn import SMALL_BYTES, library
from convolution_shapes import CHANNELS, MAX_ELEMENTS, SIDES
from fit_cudnn_trees import TREES, code_of, fitted, share

from cotenant.estimators.cudnn.depthwise import FORM
from cotenant.estimators.cudnn.trees import features, read_trees, vector_bytes
from cotenant.gpu_specs import gpu_spec

SEED = 1
DRAWN = 12_000
FOLDS = 5
CLOSE = 0.001
MAX_PARTS = 256
KERNELS = ((3, 10), (5, 10), (7, 40), (9, 10), (11, 10), (13, 8), (21, 4), (31, 4))


def shapes() -> list[dict[str, Any]]:
    """The queries: the same ones each time."""
    rng = random.Random(SEED)  # noqa: S311 - no secret depends on it
    found: list[dict[str, Any]] = []
    while len(found) < DRAWN:
        kernel = rng.choices(*zip(*KERNELS, strict=True))[0]
        images = rng.choice((1, 2, 4, 8, 16, 32, 64, 128)) if rng.random() < 0.7 else round(2 ** rng.uniform(0, 8))
        channels = rng.choice(CHANNELS) if rng.random() < 0.6 else 8 * rng.randint(2, 256)
        height = rng.choice(SIDES) if rng.random() < 0.6 else round(2 ** rng.uniform(2, 7.5))
        width = height if rng.random() < 0.9 else rng.choice(SIDES)
        stride, multiple = rng.choice((1, 1, 1, 1, 2)), rng.choice((1,) * 15 + (2,))
        outer = [(size - 1) // stride + 1 for size in (height, width)]
        x, y = [images, channels, height, width], [images, channels * multiple, *outer]
        if max(math.prod(x), math.prod(y)) < MAX_ELEMENTS:
            found.append(
                {
                    "kind": "conv_wgrad",
                    "dtype": "float32",
                    "channels_last": True,
                    "tf32": True,
                    "deterministic": False,
                    "x": x,
                    "w": [channels * multiple, 1, kernel, kernel],
                    "y": y,
                    "stride": [stride] * 2,
                    "padding": [kernel // 2] * 2,
                    "dilation": [1, 1],
                }
            )
    return found


def leaf_of(nbytes: int, query: dict[str, Any]) -> str:
    """The leaf that stands for `nbytes`: padded operands and a number of padded weights, else copies as they are."""
    if nbytes > SMALL_BYTES:
        operands, weight = vector_bytes(query)
        parts = round((nbytes - operands) / weight)
        if 0 < parts <= MAX_PARTS and abs(operands + parts * weight - nbytes) <= CLOSE * nbytes:
            return f"v{parts}"
    return code_of(nbytes, query)


def text_of(head: str, queries: Sequence[dict[str, Any]], answers: Sequence[int]) -> str:
    """A file of the package."""
    leaves = [leaf_of(nbytes, query) for nbytes, query in zip(answers, queries, strict=True)]
    tree = fitted([features(query) for query in queries], leaves)
    return f"{head}; {len(queries)} shapes, scripts/fit_depthwise_trees.py\nconv_wgrad {tree}\n"


def measured(folder: Path) -> list[tuple[str, str, list[int]]]:
    """GPU, first line and answers of all files in `folder`."""
    found = []
    for file in sorted(folder.glob("*.csv.gz")):
        head, *lines = gzip.decompress(file.read_bytes()).decode().splitlines()
        found.append((file.name.removesuffix(".csv.gz"), head, list(map(int, lines))))
    if not found:
        sys.exit(f"no measurements in {folder}: run `measure` first")
    return found


def measure(gpu: str, site: Path, folder: Path) -> None:
    """Write cuDNN's answers for all shapes."""
    cudnn = library(gpu, site)
    lines = [str(max(0, next(iter(cudnn.workspaces(query)), 0))) for query in shapes()]
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join([f"# cuDNN {cudnn.version} on a null {gpu}", *lines, ""])
    (folder / f"{gpu}.csv.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def judge(folder: Path) -> None:
    """Print, for the last fifth of the shapes, how many guesses are within 2 %, and how far all are in sum."""
    queries = shapes()
    first = len(queries) * (FOLDS - 1) // FOLDS
    for gpu, head, answers in measured(folder):
        tree = read_trees(text_of(head, queries[:first], answers[:first]))
        pairs = [(tree(query), nbytes) for query, nbytes in zip(queries[first:], answers[first:], strict=True)]
        error = sum(abs(guess - nbytes) for guess, nbytes in pairs) / sum(nbytes for _, nbytes in pairs)
        print(f"{gpu}: {len(pairs)} shapes, within 2 %: {share(pairs):.1%}, error of the sum {error:.1%}")


def fit(folder: Path) -> None:
    """Write the files of the package."""
    for gpu, head, answers in measured(folder):
        major, minor = gpu_spec(gpu).compute_capability
        text = text_of(head, shapes(), answers)
        file = TREES / f"sm{major}{minor}_{head.split()[2]}_{FORM}.txt.gz"
        file.write_bytes(gzip.compress(text.encode(), mtime=0))
        print(file.name, file.stat().st_size, "bytes", text.count("<="), "nodes")


def main() -> None:
    """Measure, judge or fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("measure", "judge", "fit"))
    parser.add_argument("--folder", type=Path, required=True, help="of measurements")
    parser.add_argument("--gpu", default="H100-80GB", help="model of GPU to measure")
    parser.add_argument("--site", type=Path, help="folder with torch and NVIDIA's wheels to measure")
    args = parser.parse_args()
    if args.step == "measure":
        if args.site is None:
            parser.error("`measure` needs --site")
        measure(args.gpu, args.site, args.folder)
    else:
        {"judge": judge, "fit": fit}[args.step](args.folder)


if __name__ == "__main__":
    main()
