"""Whole trainings through TRL, PEFT and diffusers; one by its name:

    python benchmarks/estimator/jobs/fine_tuning_loops.py supervised

Networks are small, of random weights; the calls are those of the libraries' own guides.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trainer_loops import WORDS, text, tokenizer

GPU = torch.device("cuda")
COMMON = {"report_to": "none", "save_strategy": "no", "num_train_epochs": 2}


def llama(**options: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config, **options)


def supervised() -> None:
    """TRL's supervised fine-tuning with adapters, evaluation by steps, texts as long as 120 words."""
    from datasets import Dataset as Table
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    rows = Table.from_dict({"text": [text(120, seed) for seed in range(64)]})
    options = SFTConfig(
        tempfile.mkdtemp(),
        max_length=128,
        per_device_train_batch_size=8,
        eval_strategy="steps",
        eval_steps=5,
        bf16=True,
        **COMMON,
    )
    adapters = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    SFTTrainer(
        llama(),
        options,
        train_dataset=rows,
        eval_dataset=rows.select(range(16)),
        processing_class=tokenizer(),
        peft_config=adapters,
    ).train()


def packed_supervised() -> None:
    """TRL's supervised fine-tuning of all weights with packed texts and accumulation."""
    from datasets import Dataset as Table
    from trl import SFTConfig, SFTTrainer

    rows = Table.from_dict({"text": [text(20 + 7 * (seed % 11), seed) for seed in range(160)]})
    options = SFTConfig(
        tempfile.mkdtemp(),
        max_length=128,
        packing=True,
        per_device_train_batch_size=4,
        packing_strategy="wrapped",
        gradient_accumulation_steps=2,
        bf16=True,
        **COMMON,
    )
    SFTTrainer(llama(), options, train_dataset=rows, processing_class=tokenizer()).train()


def preference() -> None:
    """TRL's direct preference optimization beside a reference model."""
    from datasets import Dataset as Table
    from trl import DPOConfig, DPOTrainer

    rows = Table.from_dict(
        {
            key: [text(count, seed + shift) for seed in range(48)]
            for shift, (key, count) in enumerate((("prompt", 40), ("chosen", 60), ("rejected", 60)))
        }
    )
    options = DPOConfig(
        tempfile.mkdtemp(), per_device_train_batch_size=4, max_length=128, eval_strategy="epoch", bf16=True, **COMMON
    )
    DPOTrainer(
        llama(), llama(), options, train_dataset=rows, eval_dataset=rows.select(range(8)), processing_class=tokenizer()
    ).train()


def rewards() -> None:
    """TRL's reward model, a classifier of pairs."""
    from datasets import Dataset as Table
    from transformers import LlamaForSequenceClassification
    from trl import RewardConfig, RewardTrainer

    config = llama().config
    config.num_labels = 1
    model = LlamaForSequenceClassification(config)
    rows = Table.from_dict(
        {"chosen": [text(90, seed) for seed in range(48)], "rejected": [text(90, seed + 99) for seed in range(48)]}
    )
    options = RewardConfig(
        tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        max_length=128,
        gradient_checkpointing=True,
        bf16=True,
        eval_strategy="steps",
        eval_steps=10,
        **COMMON,
    )
    RewardTrainer(
        model, options, train_dataset=rows, eval_dataset=rows.select(range(16)), processing_class=tokenizer()
    ).train()


def adapters_by_hand() -> None:
    """PEFT's adapters on GPT-2 with checkpointing, in a loop by hand, and an evaluation of perplexity."""
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_embd=256, n_layer=4, n_head=4, n_positions=256))
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    model = get_peft_model(model, LoraConfig(r=16, lora_dropout=0.05, target_modules=["c_attn"], fan_in_fan_out=True))
    model.to(GPU)
    optimizer = torch.optim.AdamW((value for value in model.parameters() if value.requires_grad), 1e-4)
    ids = TensorDataset(torch.randint(5, WORDS, (72, 200)))
    for _epoch in range(2):
        model.train()
        for (batch,) in DataLoader(ids, 8, shuffle=True):
            batch = batch.to(GPU)
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        losses = []
        for (batch,) in DataLoader(ids, 16):
            with torch.no_grad():
                losses.append(model(input_ids=batch.to(GPU), labels=batch.to(GPU)).loss.repeat(16))
        print(torch.cat(losses)[:72].mean().exp().item())


def unconditional_diffusion() -> None:
    """A U-Net of diffusers with an average of its weights and samples after each epoch."""
    from accelerate import Accelerator
    from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
    from diffusers.training_utils import EMAModel

    accelerator = Accelerator(mixed_precision="fp16")
    model = UNet2DModel(
        32,
        3,
        3,
        block_out_channels=(64, 128, 128),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    )
    average = EMAModel(model.parameters(), decay=0.999, use_ema_warmup=True)
    schedule = DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    loader = DataLoader(TensorDataset(torch.randn(100, 3, 32, 32)), 16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    average.to(accelerator.device)
    for _epoch in range(2):
        for (images,) in loader:
            noise = torch.randn_like(images)
            times = torch.randint(1000, (len(images),), device=images.device)
            loss = nn.functional.mse_loss(model(schedule.add_noise(images, noise, times), times).sample, noise)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            average.step(model.parameters())
        unet = accelerator.unwrap_model(model)
        average.store(unet.parameters())
        average.copy_to(unet.parameters())
        pipeline = DDPMPipeline(unet, schedule)
        pipeline.set_progress_bar_config(disable=True)
        pipeline(batch_size=8, num_inference_steps=10, output_type="np")
        average.restore(unet.parameters())


def pictures_of_texts() -> None:
    """Latent diffusion with frozen autoencoder and text encoder in float16, as diffusers' example trains it."""
    from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel

    texts = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=WORDS, hidden_size=128, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4
        )
    )
    encoder = AutoencoderKL(
        block_out_channels=(32, 64),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=16,
    )
    unet = UNet2DConditionModel(
        32,
        block_out_channels=(64, 128),
        layers_per_block=1,
        cross_attention_dim=128,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    ).to(GPU)
    texts.requires_grad_(requires_grad=False)
    encoder.requires_grad_(requires_grad=False)
    texts.to(GPU, torch.float16)
    encoder.to(GPU, torch.float16)
    unet.enable_gradient_checkpointing()
    schedule, optimizer = DDPMScheduler(), torch.optim.AdamW(unet.parameters(), 1e-5)
    scaler = torch.amp.GradScaler()
    rows = TensorDataset(torch.randn(48, 3, 128, 128), torch.randint(5, WORDS, (48, 77)))
    for _epoch in range(2):
        for images, ids in DataLoader(rows, 8, shuffle=True):
            latents = encoder.encode(images.to(GPU, torch.float16)).latent_dist.sample() * 0.18215
            noise = torch.randn_like(latents)
            times = torch.randint(1000, (len(images),), device=GPU)
            with torch.autocast("cuda", torch.float16):
                found = unet(schedule.add_noise(latents, noise, times), times, texts(ids.to(GPU))[0]).sample
                loss = nn.functional.mse_loss(found.float(), noise.float())
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)


LOOPS: tuple[Callable[[], None], ...] = (
    supervised,
    packed_supervised,
    preference,
    rewards,
    adapters_by_hand,
    unconditional_diffusion,
    pictures_of_texts,
)

if __name__ == "__main__":
    torch.manual_seed(0)
    {loop.__name__: loop for loop in LOOPS}[sys.argv[1]]()
