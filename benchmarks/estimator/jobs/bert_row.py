"""Trains BERT-large for classification on random tokens, as the performance guide of transformers 4.19 measured it.

The loop is that of its `Trainer` on torch 1.10: eager attention, gradients set to zero, an optimizer that updates one
parameter after another. `adam8bit` stands for bitsandbytes: two states of one byte and their scales, in blocks of
2,048.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import old_torch
import torch
import transformers

LENGTH = 512
BLOCK = 2048
MIN_QUANTIZED = 4096


class Adam8bit(torch.optim.Optimizer):
    """Adam with states of one byte, as far as memory goes: its step changes nothing.

    Source: bitsandbytes/optim/optimizer.py, `Optimizer2State.init_state`: below 4,096 elements the states are in fp32.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:
        for weight in self.param_groups[0]["params"]:
            state = self.state[weight]
            if state or weight.grad is None:
                continue
            small = weight.numel() < MIN_QUANTIZED
            for name in ("state1", "state2"):
                state[name] = torch.zeros_like(weight, dtype=torch.float32 if small else torch.uint8)
                if not small:
                    state[f"{name}_scales"] = torch.zeros(-(-weight.numel() // BLOCK), device=weight.device)


OPTIMIZERS = {
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=5e-5, foreach=False),
    "adafactor": lambda weights: transformers.optimization.Adafactor(
        weights, lr=5e-5, scale_parameter=False, relative_step=False
    ),
    "adam8bit": lambda weights: Adam8bit(weights, lr=5e-5),
}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--fp16", action="store_true")
    parser.add_argument("--optimizer", choices=list(OPTIMIZERS), default="adamw")
    parser.add_argument("--steps", type=int, default=4)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    old_torch.use_old_softmax()
    config = transformers.BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, vocab_size=30522
    )
    config._attn_implementation = "eager"
    model = transformers.BertForSequenceClassification(config).to("cuda")
    if args.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": True})
    model.train()
    decayed = [weight for name, weight in model.named_parameters() if "bias" not in name and "LayerNorm" not in name]
    others = [weight for name, weight in model.named_parameters() if "bias" in name or "LayerNorm" in name]
    optimizer = OPTIMIZERS[args.optimizer]([*decayed, *others])
    scaler = torch.amp.GradScaler("cuda", enabled=args.fp16)
    for step in range(args.steps):
        for _ in range(args.accumulate):
            tokens = torch.randint(100, 30000, (args.batch_size, LENGTH)).to("cuda")
            labels = torch.zeros(args.batch_size, dtype=torch.int64).to("cuda")
            with torch.autocast("cuda", torch.float16, enabled=args.fp16):
                loss = model(input_ids=tokens, labels=labels).loss
            scaler.scale(loss / args.accumulate).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        model.zero_grad(set_to_none=False)
        print(f"step {step}", flush=True)


if __name__ == "__main__":
    main()
