"""A Llama 3 cut to fit one GPU, fewer layers or narrower ones, causal language modeling on random token ids: AdamW.

`--variant width` has the width of the 8B model in 8 layers, `--variant depth` its 32 layers at a quarter of the width.
"""

from __future__ import annotations

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VARIANTS = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
    "width": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 8, "num_attention_heads": 32},
    "depth": {"hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 32, "num_attention_heads": 8},
}
VOCABULARY = 128_256


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", choices=VARIANTS, default="width")
    parser.add_argument("--layers", type=int, help="in place of the variant's")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16", help="of weights and states")
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    device = torch.device(args.device)
    sizes = dict(VARIANTS[args.variant], **({} if args.layers is None else {"num_hidden_layers": args.layers}))
    config = LlamaConfig(
        vocab_size=VOCABULARY if args.variant != "tiny" else 1_000,
        num_key_value_heads=sizes["num_attention_heads"] // 4,
        max_position_embeddings=max(8192, args.seq_len),
        rope_theta=500_000.0,
        **sizes,
    )
    model = LlamaForCausalLM(config).to(device=device, dtype=getattr(torch, args.dtype))
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    for step in range(args.steps):
        tokens = torch.randint(config.vocab_size, (args.batch_size, args.seq_len)).to(device)
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}/{args.steps}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
