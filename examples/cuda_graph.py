"""A training step in a CUDA graph, after a few on a stream of its own; or only the model, by `make_graphed_callables`.

python examples/cuda_graph.py --what model
"""

from __future__ import annotations

import argparse

import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--what", choices=["step", "model"], default="step")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=256)
    args = parser.parse_args()

    width = args.width
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=True)
    x = torch.randn(args.batch_size, width, device="cuda")
    y = torch.randn(args.batch_size, width, device="cuda")
    if args.what == "model":
        model = torch.cuda.make_graphed_callables(model, (x,))

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    if args.what == "model":
        for _ in range(20):
            x.copy_(torch.randn(args.batch_size, width))
            step()
        return
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    for _ in range(20):
        x.copy_(torch.randn(args.batch_size, width))
        graph.replay()
    print(loss.item())


if __name__ == "__main__":
    main()
