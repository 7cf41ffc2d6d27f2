"""One optimizer step of a Qwen3.5 language model in bf16, full or LoRA, as FakeGPU's measurements took it.

The peaks were reset after the model was loaded. Its settings are those for which the number of parameters is the
published one, of the model and of the adapters. `--processes` shards each layer and the rest among so many: LoRA by
`fully_shard`, all parameters by `FullyShardedDataParallel`, whose published peak is that of forward and backward.
"""

from __future__ import annotations

import argparse

import peft
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

SIZES = {
    "Qwen3.5-0.8B": {"hidden_size": 1024, "intermediate_size": 3584},
    "Qwen3.5-2B": {"hidden_size": 2048, "intermediate_size": 6144},
}
SHARED = {
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "linear_num_value_heads": 16,
    "tie_word_embeddings": True,
    "use_cache": False,
}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*SIZES], required=True)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rank", type=int, default=0, help="of the adapters; 0: all parameters are trained")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--processes", type=int, default=1)
    return parser.parse_args()


def build_model(args: argparse.Namespace) -> torch.nn.Module:
    config = Qwen3_5TextConfig(**SIZES[args.model], **SHARED)
    model = Qwen3_5ForCausalLM._from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    if args.rank:
        adapters = peft.LoraConfig(
            r=args.rank, lora_alpha=2 * args.rank, task_type="CAUSAL_LM", target_modules="all-linear"
        )
        model = peft.get_peft_model(model, adapters)
    if args.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if args.rank:
            model.enable_input_require_grads()
    return model


def sharded(model: torch.nn.Module, args: argparse.Namespace) -> torch.nn.Module:
    """The model on the GPU of the first of several processes."""
    torch.distributed.init_process_group("nccl", rank=0, world_size=args.processes, init_method="tcp://127.0.0.1:29512")
    if not args.rank:
        return FullyShardedDataParallel(
            model,
            auto_wrap_policy=ModuleWrapPolicy({type(model.model.layers[0])}),
            device_id=torch.device("cuda", 0),
            backward_prefetch=None,
        )
    model.to("cuda:0")
    mesh = init_device_mesh("cuda", (args.processes,), mesh_dim_names=("dp",))
    for layer in model.base_model.model.model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    return fully_shard(model, mesh=mesh, reshard_after_forward=True)


def main() -> None:
    args = parse_args()
    model = build_model(args).train()
    model = model.cuda() if args.processes == 1 else sharded(model, args)
    tokens = torch.randint(100, 248_320, (1, args.length))
    labels = tokens.clone()
    labels[:, : args.length // 2] = -100
    positions = torch.arange(args.length).expand(3, 1, args.length).clone()
    batch = {"input_ids": tokens.cuda(), "labels": labels.cuda(), "position_ids": positions.cuda()}
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    if args.processes > 1 and not args.rank:  # no memory of its own
        optimizer = torch.optim.SGD(trained, lr=1e-5, foreach=False)
    else:
        optimizer = torch.optim.AdamW(trained, lr=1e-5, foreach=False)
    torch.cuda.reset_peak_memory_stats()
    outputs = model(**batch, use_cache=False)
    outputs.loss.backward()
    optimizer.step()
    print(f"loss {outputs.loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
