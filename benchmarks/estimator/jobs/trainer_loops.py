"""Whole trainings with Hugging Face's Trainer, with two epochs and what follows each; one of them by its name:

    python benchmarks/estimator/jobs/trainer_loops.py trainer_classifier

Networks are small, of random weights; the calls are those of the libraries' own guides.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

WORDS = 4096
COMMON = {"report_to": "none", "save_strategy": "no", "num_train_epochs": 2}


class Texts(Dataset[dict[str, Tensor]]):
    """Sequences of fixed or varying length, as their labels or with a class."""

    def __init__(self, count: int, length: int, *, varies: bool = False, classes: int | None = None) -> None:
        draw = torch.Generator().manual_seed(1)
        lengths = [int(torch.randint(length // 4, length, (), generator=draw)) if varies else length] * count
        if varies:
            lengths = [int(torch.randint(length // 4, length, (), generator=draw)) for _ in range(count)]
        self.rows = [torch.randint(3, WORDS, (length,), generator=draw) for length in lengths]
        self.classes = classes

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = self.rows[index]
        label = row if self.classes is None else torch.tensor(index % self.classes)
        return {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": label}


def padded(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """A batch as long as its longest row."""
    pad = nn.utils.rnn.pad_sequence
    batch = {key: pad([row[key] for row in rows], batch_first=True) for key in ("input_ids", "attention_mask")}
    labels = [row["labels"] for row in rows]
    batch["labels"] = torch.stack(labels) if labels[0].dim() == 0 else pad(labels, batch_first=True, padding_value=-100)
    return batch


def trained(model: nn.Module, **options: Any) -> Any:
    """Hugging Face's Trainer with `options`, of which those that it has itself are its own."""
    from transformers import Trainer, TrainingArguments

    own = {
        key: options.pop(key)
        for key in ("train_dataset", "eval_dataset", "data_collator", "compute_metrics")
        if key in options
    }
    common = {"output_dir": tempfile.mkdtemp(), "report_to": "none", "save_strategy": "no", "num_train_epochs": 2}
    trainer = Trainer(model, TrainingArguments(**{**common, **options}), **own)
    trainer.train()
    return trainer


def tokenizer() -> Any:
    """Words `w5` to `w4095`, with the usual special ones."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
    vocabulary = {name: index for index, name in enumerate([*names, *(f"w{index}" for index in range(5, WORDS))])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        mask_token="<mask>",
        cls_token="<s>",
        sep_token="</s>",
    )
    made.model_max_length = 256
    return made


def text(words: int, seed: int) -> str:
    draw = torch.Generator().manual_seed(seed)
    return " ".join(f"w{int(index)}" for index in torch.randint(5, WORDS, (words,), generator=draw))


def trainer_classifier() -> None:
    """BERT with a head for classes, bfloat16, an evaluation with predictions after each epoch."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        num_labels=5,
    )
    trained(
        BertForSequenceClassification(config),
        train_dataset=Texts(200, 128, classes=5),
        eval_dataset=Texts(100, 128, classes=5),
        compute_metrics=lambda result: {"accuracy": float((result.predictions.argmax(1) == result.label_ids).mean())},
        per_device_train_batch_size=16,
        per_device_eval_batch_size=32,
        bf16=True,
        eval_strategy="epoch",
    )


def trainer_language_model() -> None:
    """GPT-2 with accumulation, checkpointing of its blocks, label smoothing and an evaluation by steps."""
    from transformers import GPT2Config, GPT2LMHeadModel

    trained(
        GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_embd=256, n_layer=4, n_head=4, n_positions=256)),
        train_dataset=Texts(96, 256),
        eval_dataset=Texts(24, 256),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        gradient_checkpointing=True,
        label_smoothing_factor=0.1,
        eval_strategy="steps",
        eval_steps=4,
        fp16=True,
    )


def trainer_translation() -> None:
    """T5 with batches as long as their longest text, and generated answers in the evaluation."""
    from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=WORDS, d_model=256, d_kv=64, d_ff=1024, num_layers=3, num_heads=4, decoder_start_token_id=0
    )
    options = Seq2SeqTrainingArguments(
        tempfile.mkdtemp(),
        report_to="none",
        save_strategy="no",
        num_train_epochs=2,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=16,
        eval_strategy="epoch",
        predict_with_generate=True,
        generation_max_length=32,
    )
    Seq2SeqTrainer(
        T5ForConditionalGeneration(config),
        options,
        data_collator=padded,
        train_dataset=Texts(160, 96),
        eval_dataset=Texts(48, 96),
    ).train()


def trainer_speech() -> None:
    """Whisper from spectrograms, with Adafactor."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    class Speech(Dataset[dict[str, Tensor]]):
        def __len__(self) -> int:
            return 48

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            return {"input_features": torch.randn(80, 600), "labels": torch.randint(3, WORDS, (40,))}

    config = WhisperConfig(
        vocab_size=WORDS,
        d_model=256,
        encoder_layers=3,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=1024,
        decoder_ffn_dim=1024,
        max_source_positions=300,
        pad_token_id=0,
        decoder_start_token_id=1,
    )
    trained(
        WhisperForConditionalGeneration(config),
        train_dataset=Speech(),
        eval_dataset=Speech(),
        per_device_train_batch_size=8,
        optim="adafactor",
        eval_strategy="epoch",
        fp16=True,
    )


def trainer_pictures() -> None:
    """Segformer's classifier with a frozen first stage, and the best of two evaluations' weights saved."""
    from transformers import SegformerConfig, SegformerForImageClassification

    class Pictures(Dataset[dict[str, Tensor]]):
        def __len__(self) -> int:
            return 72

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            return {"pixel_values": torch.randn(3, 128, 128), "labels": torch.tensor(index % 10)}

    model = SegformerForImageClassification(SegformerConfig(num_labels=10))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("patch_embeddings.0" not in name)
    trained(
        model,
        train_dataset=Pictures(),
        eval_dataset=Pictures(),
        per_device_train_batch_size=16,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
    )


def masked_words() -> None:
    """DistilBERT with masked words, whose predictions are collected for a metric."""
    from transformers import (
        DataCollatorForLanguageModeling,
        DistilBertConfig,
        DistilBertForMaskedLM,
        Trainer,
        TrainingArguments,
    )

    words = tokenizer()
    rows = [words(text(100, seed), truncation=True, max_length=100) for seed in range(96)]
    model = DistilBertForMaskedLM(DistilBertConfig(vocab_size=WORDS, dim=256, n_layers=3, n_heads=4, hidden_dim=1024))
    options = TrainingArguments(tempfile.mkdtemp(), per_device_train_batch_size=16, eval_strategy="epoch", **COMMON)
    Trainer(
        model,
        options,
        train_dataset=rows,
        eval_dataset=rows[:40],
        data_collator=DataCollatorForLanguageModeling(words),
        compute_metrics=lambda found: {"mean": float(found.predictions.mean())},
    ).train()


def spoken_letters() -> None:
    """Wav2Vec2 with CTC; its feature encoder is frozen."""
    from transformers import Trainer, TrainingArguments, Wav2Vec2Config, Wav2Vec2ForCTC

    class Speech(Dataset[dict[str, Tensor]]):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            return {"input_values": torch.randn(24_000), "labels": torch.randint(1, 31, (20,))}

    config = Wav2Vec2Config(
        vocab_size=32,
        hidden_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=1024,
        mask_time_prob=0.0,
        pad_token_id=0,
    )
    model = Wav2Vec2ForCTC(config)
    model.freeze_feature_encoder()
    options = TrainingArguments(
        tempfile.mkdtemp(), per_device_train_batch_size=4, eval_strategy="steps", eval_steps=5, fp16=True, **COMMON
    )
    Trainer(model, options, train_dataset=Speech(), eval_dataset=Speech()).train()


def sentences() -> None:
    """Sentence embeddings with negatives of the batch and an evaluation by its loss."""
    from datasets import Dataset as Table
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
        losses,
    )
    from sentence_transformers.models import Pooling, Transformer
    from transformers import BertConfig, BertModel

    folder = tempfile.mkdtemp()
    config = BertConfig(
        vocab_size=WORDS, hidden_size=256, num_hidden_layers=3, num_attention_heads=4, intermediate_size=1024
    )
    BertModel(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    words = Transformer(folder)
    model = SentenceTransformer(modules=[words, Pooling(256)])
    rows = Table.from_dict(
        {"anchor": [text(60, seed) for seed in range(160)], "positive": [text(60, seed + 7) for seed in range(160)]}
    )
    options = SentenceTransformerTrainingArguments(
        folder, per_device_train_batch_size=32, eval_strategy="epoch", fp16=True, **COMMON
    )
    SentenceTransformerTrainer(
        model,
        options,
        train_dataset=rows,
        eval_dataset=rows.select(range(64)),
        loss=losses.MultipleNegativesRankingLoss(model),
    ).train()


LOOPS: tuple[Callable[[], None], ...] = (
    *(trainer_classifier, trainer_language_model, trainer_translation, trainer_speech),
    *(trainer_pictures, masked_words, spoken_letters, sentences),
)

if __name__ == "__main__":
    torch.manual_seed(0)
    {loop.__name__: loop for loop in LOOPS}[sys.argv[1]]()
