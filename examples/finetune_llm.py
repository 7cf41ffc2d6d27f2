"""A language model of transformers in pure bf16: with all its weights, or LoRA; its blocks checkpointed.

python examples/finetune_llm.py --layers 16 --width 2048 --lora
python examples/finetune_llm.py --checkpoint ./Llama-3.2-1B --optimizer adafactor   # config.json is enough to estimate
"""

from __future__ import annotations

import argparse

import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", help="a folder or a name of the hub; default: a Llama of the size below")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--words", type=int, default=32_000)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--lora", action="store_true", help="train adapters only; needs peft")
    parser.add_argument("--no-checkpointing", action="store_true")
    parser.add_argument("--optimizer", choices=["adamw", "fused", "adafactor", "adamw8bit"], default="adamw")
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def make_model(args: argparse.Namespace):
    if args.checkpoint is not None:
        model = AutoModelForCausalLM.from_pretrained(args.checkpoint, torch_dtype=torch.bfloat16)
    else:
        config = LlamaConfig(
            vocab_size=args.words,
            hidden_size=args.width,
            intermediate_size=8 * args.width // 3 // 64 * 64,
            num_hidden_layers=args.layers,
            num_attention_heads=args.width // 64,
            num_key_value_heads=max(1, args.width // 256),
        )
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.train()
    if not args.no_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.config.use_cache = False
    if args.lora:
        from peft import LoraConfig, get_peft_model

        model.enable_input_require_grads()
        wanted = ["q_proj", "k_proj", "v_proj", "o_proj"]
        model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=wanted, task_type="CAUSAL_LM"))
    return model.to(args.device)


def make_optimizer(model, name: str) -> torch.optim.Optimizer:
    trained = [each for each in model.parameters() if each.requires_grad]
    if name == "adafactor":
        return torch.optim.Adafactor(trained, lr=1e-4)
    if name == "adamw8bit":
        import bitsandbytes

        return bitsandbytes.optim.AdamW8bit(trained, lr=1e-4)
    return torch.optim.AdamW(trained, lr=1e-4, fused=name == "fused" or None)


def main() -> None:
    args = parse_args()
    model = make_model(args)
    optimizer = make_optimizer(model, args.optimizer)
    words = min(args.words, model.config.vocab_size)
    texts = [torch.randint(0, words, (args.length,)) for _ in range(64)]
    for step, tokens in enumerate(DataLoader(texts, args.batch_size, shuffle=True, drop_last=True)):
        tokens = tokens.to(args.device)
        loss = model(input_ids=tokens, labels=tokens).loss / args.accumulate
        loss.backward()
        if (step + 1) % args.accumulate == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            print(f"step {step}: {args.accumulate * loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
