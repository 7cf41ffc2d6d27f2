"""Networks over tokens. Needs torch. B: batch, L: length, D: width, H: heads."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from cotenant.learn.data_collection.configs import TransformerConfig
from cotenant.learn.networks.torch_modules import activation


def build_transformer(config: TransformerConfig) -> nn.Module:
    """The network of that shape."""
    if config.shape == "gpt":
        return Gpt(config)
    if config.shape == "conv1d":
        return _classifier(config, Convolutions(config))
    if config.shape == "encoder":
        return _classifier(config, _encoder(config, config.depth))
    return Decoder(config)


class TokenEmbedding(nn.Module):
    """Embedding of tokens plus embedding of positions."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocabulary, config.width)
        self.places = nn.Embedding(config.length, config.width)

    def forward(self, tokens_BL: torch.Tensor) -> torch.Tensor:  # noqa: N803 (the shape is in the name)
        """B x L to B x L x D."""
        places_L = torch.arange(tokens_BL.shape[1], device=tokens_BL.device)  # noqa: N806
        embedded: torch.Tensor = self.words(tokens_BL) + self.places(places_L)
        return embedded


class Mean(nn.Module):
    """The mean over the sequence."""

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:  # noqa: N803
        """B x L x D to B x D."""
        return x_BLD.mean(dim=1)


def _classifier(config: TransformerConfig, body: nn.Module) -> nn.Module:
    return nn.Sequential(TokenEmbedding(config), body, Mean(), nn.Linear(config.width, config.classes))


def _encoder(config: TransformerConfig, layers: int) -> nn.Module:
    return nn.Sequential(*(nn.TransformerEncoderLayer(**_layer_settings(config)) for _ in range(layers)))


def _layer_settings(config: TransformerConfig) -> dict[str, Any]:
    """Arguments of torch's encoder and decoder layers."""
    return {
        "d_model": config.width,
        "nhead": config.heads,
        "dim_feedforward": config.feedforward,
        "dropout": config.dropout / 1000,
        "activation": "gelu" if config.activation == "gelu" else "relu",
        "batch_first": True,
    }


class Decoder(nn.Module):
    """A decoder over one sequence that attends to another one, embedded (`decoder`) or encoded (`encdec`).

    Half of the layers of `encdec`, rounded up, are the decoder's.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        encoders = config.depth // 2 if config.shape == "encdec" else 0
        layers = range(config.depth - encoders)
        self.tokens = TokenEmbedding(config)
        self.encoder = _encoder(config, encoders)
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(**_layer_settings(config)) for _ in layers)
        self.head = nn.Linear(config.width, config.classes)
        mask_LL = nn.Transformer.generate_square_subsequent_mask(config.length)  # noqa: N806
        self.register_buffer("mask", mask_LL, persistent=False)

    def forward(self, tokens_BL: torch.Tensor, memory_BL: torch.Tensor) -> torch.Tensor:  # noqa: N803
        """Twice B x L to B x classes."""
        memory_BLD = self.encoder(self.tokens(memory_BL))  # noqa: N806
        x_BLD = self.tokens(tokens_BL)  # noqa: N806
        for layer in self.decoder:
            x_BLD = layer(x_BLD, memory_BLD, tgt_mask=self.mask, tgt_is_causal=True)  # noqa: N806
        logits: torch.Tensor = self.head(x_BLD.mean(dim=1))
        return logits


class Conv1D(nn.Module):
    """A linear layer with its weight as GPT-2 stores it: inputs x outputs."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs).normal_(std=0.02))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """... x inputs to ... x outputs."""
        flat = torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)
        return flat.reshape(*x.shape[:-1], -1)


class GptBlock(nn.Module):
    """Norm first; one projection for queries, keys and values; causal attention; a feed-forward part."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.dropout = config.dropout / 1000
        self.before_attention = nn.LayerNorm(width)
        self.projection = Conv1D(width, 3 * width)
        self.output = Conv1D(width, width)
        self.before_forward = nn.LayerNorm(width)
        self.up = Conv1D(width, config.feedforward)
        self.activation = activation(config.activation)
        self.down = Conv1D(config.feedforward, width)
        self.drop = nn.Dropout(self.dropout)

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:  # noqa: N803
        """B x L x D to the same."""
        batch, length, width = x_BLD.shape
        fused = self.projection(self.before_attention(x_BLD))
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for part in fused.split(width, 2)
        )
        dropout = self.dropout if self.training else 0.0
        attended_BHLD = functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)  # noqa: N806
        x_BLD = x_BLD + self.drop(self.output(attended_BHLD.transpose(1, 2).reshape(batch, length, width)))  # noqa: N806
        forwarded: torch.Tensor = x_BLD + self.drop(self.down(self.activation(self.up(self.before_forward(x_BLD)))))
        return forwarded


class Gpt(nn.Module):
    """Blocks of GPT-2 over tokens; the logits of every next token, by the weights of the embedding."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.tokens = TokenEmbedding(config)
        self.drop = nn.Dropout(config.dropout / 1000)
        self.blocks = nn.Sequential(*(GptBlock(config) for _ in range(config.depth)))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.tokens.words.weight

    def forward(self, tokens_BL: torch.Tensor) -> torch.Tensor:  # noqa: N803
        """B x L to B x L x vocabulary."""
        logits: torch.Tensor = self.head(self.norm(self.blocks(self.drop(self.tokens(tokens_BL)))))
        return logits


class Convolutions(nn.Module):
    """1-D convolutions of 3 tokens: up to the feed-forward width and back, added to their input, then normalized."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(config.width, config.feedforward, 3, padding=1),
                activation(config.activation),
                nn.Dropout(config.dropout / 1000),
                nn.Conv1d(config.feedforward, config.width, 3, padding=1),
            )
            for _ in range(config.depth)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(config.width) for _ in range(config.depth))

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:  # noqa: N803
        """B x L x D to the same."""
        for block, norm in zip(self.blocks, self.norms, strict=True):
            x_BLD = norm(x_BLD + block(x_BLD.transpose(1, 2)).transpose(1, 2))  # noqa: N806
        return x_BLD
