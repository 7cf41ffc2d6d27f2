"""Trains a Hugging Face transformer of any size, built from its configuration, on random tokens or images.

Options: fp32, autocast or half precision; gradient checkpointing and accumulation; the attention implementation.
"""

from __future__ import annotations

import argparse
import contextlib

import torch
import transformers
from torch.utils.data import DataLoader, Dataset

IMAGE_SIZE = 224


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=("bert", "gpt2", "llama", "t5", "vit", "opt"), default="gpt2")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--kv-heads", type=int, default=None, help="key-value heads of llama (default: as --heads)")
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--optimizer", default="AdamW", help="a name in torch.optim")
    parser.add_argument("--fused", action="store_true", help="use the fused optimizer")
    parser.add_argument("--precision", choices=("fp32", "bf16", "amp-bf16"), default="fp32")
    parser.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa")
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--accumulate", type=int, default=1, help="batches per optimizer step")
    parser.add_argument("--clip", action="store_true", help="clip the gradients' norm")
    parser.add_argument("--batches", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


class RandomData(Dataset):
    """Tokens that are their own labels, or images of ten classes."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.count = args.batches * args.batch_size

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index >= self.count:
            raise IndexError(index)
        random = torch.Generator().manual_seed(index)
        if self.args.family == "vit":
            pixels = torch.randn(3, IMAGE_SIZE, IMAGE_SIZE, generator=random)
            return {"pixel_values": pixels, "labels": torch.tensor(index % 10)}
        tokens = torch.randint(2, self.args.vocabulary, (self.args.seq_len,), generator=random)
        return {"input_ids": tokens, "labels": tokens.clone()}


def build_model(args: argparse.Namespace) -> torch.nn.Module:
    width, layers, heads = args.width, args.layers, args.heads
    common = {"attn_implementation": args.attention}
    positions = max(1024, args.seq_len)
    encoder = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    if args.family == "bert":
        config = transformers.BertConfig(
            **encoder,
            vocab_size=args.vocabulary,
            intermediate_size=4 * width,
            max_position_embeddings=positions,
        )
        return transformers.BertForMaskedLM._from_config(config, **common)
    if args.family == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=args.vocabulary, n_embd=width, n_layer=layers, n_head=heads, n_positions=positions
        )
        return transformers.GPT2LMHeadModel._from_config(config, **common)
    if args.family == "llama":
        config = transformers.LlamaConfig(
            **encoder,
            vocab_size=args.vocabulary,
            intermediate_size=8 * width // 3 // 64 * 64,
            num_key_value_heads=args.kv_heads or heads,
            max_position_embeddings=positions,
        )
        return transformers.LlamaForCausalLM._from_config(config, **common)
    if args.family == "opt":
        config = transformers.OPTConfig(
            **encoder,
            vocab_size=args.vocabulary,
            ffn_dim=4 * width,
            word_embed_proj_dim=width,
            max_position_embeddings=positions,
        )
        return transformers.OPTForCausalLM._from_config(config, **common)
    if args.family == "t5":
        config = transformers.T5Config(
            vocab_size=args.vocabulary,
            d_model=width,
            d_ff=4 * width,
            d_kv=width // heads,
            num_layers=layers,
            num_heads=heads,
            decoder_start_token_id=0,
        )
        return transformers.T5ForConditionalGeneration(config)
    config = transformers.ViTConfig(**encoder, intermediate_size=4 * width, image_size=IMAGE_SIZE, num_labels=10)
    return transformers.ViTForImageClassification._from_config(config, **common)


def main() -> None:
    args = parse_args()
    device = torch.device(args.device)
    loader = DataLoader(RandomData(args), batch_size=args.batch_size, shuffle=True)
    model = build_model(args)
    if args.precision == "bf16":
        model = model.to(torch.bfloat16)
    model = model.to(device)
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    if args.family in ("gpt2", "llama", "opt", "t5"):
        model.config.use_cache = False
    model.train()
    extra = {"fused": True} if args.fused else {}
    optimizer = getattr(torch.optim, args.optimizer)(model.parameters(), lr=1e-4, **extra)
    autocast = contextlib.nullcontext()
    if args.precision == "amp-bf16":
        autocast = torch.autocast(device.type, torch.bfloat16)

    for epoch in range(args.epochs):
        for index, batch in enumerate(loader):
            inputs = {name: tensor.to(device) for name, tensor in batch.items()}
            if args.precision == "bf16" and "pixel_values" in inputs:
                inputs["pixel_values"] = inputs["pixel_values"].to(torch.bfloat16)
            with autocast:
                loss = model(**inputs).loss / args.accumulate
            loss.backward()
            if (index + 1) % args.accumulate == 0:
                if args.clip:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
