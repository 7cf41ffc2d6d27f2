"""Finetunes the transformer of CogVideoX on latents of 49 frames of 480 x 720, as cogvideox-factory measured it.

The text encoder and the VAE are loaded and deleted before the first step, since latents and embeddings were computed
before. Weights that are trained are in fp32, as the published memory before training shows, all others in bf16.
`adam8bit` stands for bitsandbytes, as in `bert_row.py`.
"""

from __future__ import annotations

import argparse
import gc

import accelerate
import peft
import torch
from bert_row import Adam8bit
from diffusers import AutoencoderKLCogVideoX, CogVideoXTransformer3DModel
from diffusers.models.embeddings import get_3d_rotary_pos_embed
from transformers import T5Config, T5EncoderModel

MODELS = {
    "2b": {"num_attention_heads": 30, "num_layers": 30},
    "5b": {"num_attention_heads": 48, "num_layers": 42, "use_rotary_positional_embeddings": True},
}
FRAMES, CHANNELS, HEIGHT, WIDTH = 13, 16, 60, 90
WORDS, TEXT_WIDTH = 226, 4096


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*MODELS], required=True)
    parser.add_argument("--rank", type=int, default=0, help="of the adapters; 0: all parameters are trained")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--optimizer", choices=("adamw", "adam8bit"), default="adamw")
    parser.add_argument("--steps", type=int, default=3)
    return parser.parse_args()


def load_encoders() -> tuple[torch.nn.Module, ...]:
    """The encoder of T5-XXL, and a VAE; on the GPU."""
    config = T5Config(
        d_model=TEXT_WIDTH, d_ff=10240, d_kv=64, num_heads=64, num_layers=24, feed_forward_proj="gated-gelu"
    )
    with torch.device("meta"):
        vae = AutoencoderKLCogVideoX(
            block_out_channels=(128, 256, 256, 512),
            latent_channels=CHANNELS,
            layers_per_block=3,
            down_block_types=("CogVideoXDownBlock3D",) * 4,
            up_block_types=("CogVideoXUpBlock3D",) * 4,
        )
        text_encoder = T5EncoderModel(config)
    return tuple(module.to(torch.bfloat16).to_empty(device="cuda") for module in (text_encoder, vae))


def build_transformer(args: argparse.Namespace) -> torch.nn.Module:
    with torch.device("meta"):
        transformer = CogVideoXTransformer3DModel(**MODELS[args.model]).to(torch.bfloat16)
    transformer = transformer.to_empty(device="cuda")
    if args.checkpointing:
        transformer.enable_gradient_checkpointing()
    if args.rank:
        transformer.requires_grad_(requires_grad=False)
        adapters = peft.LoraConfig(
            r=args.rank, lora_alpha=args.rank, target_modules=["to_k", "to_q", "to_v", "to_out.0"]
        )
        transformer.add_adapter(adapters)
    for weight in transformer.parameters():
        if weight.requires_grad:
            weight.data = weight.float()
    return transformer.train()


def gradient_norm(weights: list[torch.Tensor]) -> float:
    squares = [weight.grad.detach().data.norm(2).item() ** 2 for weight in weights if weight.grad is not None]
    return sum(squares) ** 0.5


def main() -> None:
    args = parse_args()
    accelerator = accelerate.Accelerator(mixed_precision="bf16")
    encoders = load_encoders()
    transformer = build_transformer(args)
    trained = [weight for weight in transformer.parameters() if weight.requires_grad]
    optimizer = Adam8bit(trained, lr=1e-4) if args.optimizer == "adam8bit" else torch.optim.AdamW(trained, lr=1e-4)
    transformer = accelerator.prepare(transformer)
    del encoders
    gc.collect()
    torch.cuda.empty_cache()
    noise_levels = torch.linspace(0.999, 0.001, 1000).cuda()
    rotary = None
    if args.model == "5b":
        grid = (HEIGHT // 2, WIDTH // 2)
        rotary = tuple(
            table.cuda()
            for table in get_3d_rotary_pos_embed(
                embed_dim=64, crops_coords=((0, 0), grid), grid_size=grid, temporal_size=FRAMES
            )
        )
    for step in range(args.steps):
        videos = torch.randn(args.batch_size, FRAMES, CHANNELS, HEIGHT, WIDTH, dtype=torch.bfloat16).cuda()
        texts = torch.randn(args.batch_size, WORDS, TEXT_WIDTH, dtype=torch.bfloat16).cuda()
        noise = torch.randn_like(videos)
        times = torch.randint(0, 1000, (args.batch_size,), device="cuda")
        signal = noise_levels[times].to(videos.dtype).reshape(-1, 1, 1, 1, 1)
        noisy = signal.sqrt() * videos + (1 - signal).sqrt() * noise
        found = transformer(
            hidden_states=noisy, encoder_hidden_states=texts, timestep=times, image_rotary_emb=rotary, return_dict=False
        )[0]
        predicted = signal.sqrt() * noisy - (1 - signal).sqrt() * found
        weights = (1 / (1 - noise_levels[times])).reshape(-1, 1, 1, 1, 1)
        loss = (weights * (predicted - videos) ** 2).reshape(args.batch_size, -1).mean(dim=1).mean()
        accelerator.backward(loss)
        gradient_norm(trained)
        accelerator.clip_grad_norm_(transformer.parameters(), 1.0)
        gradient_norm(trained)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
