"""What a script saves, from its text and its command line."""

from __future__ import annotations

import shlex

import pytest

from cotenant.jobfiles.checkpoint_habits import MAX_SCRIPT_BYTES, find_habit

TRAINER = """
from transformers import HfArgumentParser, Trainer, TrainingArguments
args = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()[0]
trainer = Trainer(model, args)
trainer.train({resume})
"""
SETTINGS = """
import transformers as tf
args = tf.TrainingArguments("out", {settings})
class Mine(tf.Trainer): pass
Mine(model, args).train(resume_from_checkpoint=last)
"""
TRL = """
from trl import SFTConfig, SFTTrainer
config = LoraConfig(r=8)
SFTTrainer(model, args=SFTConfig(save_steps=20)).train()
"""
LIGHTNING = """
import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint
trainer = L.Trainer(callbacks=[{callback}], {trainer})
trainer.fit(model, {fit})
"""
ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator()
if args.resume_from_checkpoint:
    accelerator.load_state(path)
accelerator.save_state(path)
"""
TORCH = """
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
model.load_state_dict(torch.load("snapshot.pt"))
torch.save(model.state_dict(), "snapshot.pt")
"""
OURS = "from cotenant import checkpoint\ncheckpoint.install()\ncheckpoint.exit_saved()"


def habit(source, args="", **kwargs):
    return find_habit(source.encode(), shlex.split(args), **kwargs)


def trainer(args="", resume="resume_from_checkpoint=args.resume_from_checkpoint"):
    return habit(TRAINER.format(resume=resume), args)


@pytest.mark.parametrize(
    ("args", "saves"),
    [
        pytest.param("", "every 500 steps", id="the library's default"),
        pytest.param("--save_steps 50", "every 50 steps", id="an option"),
        pytest.param("--save-steps=50", "every 50 steps", id="an option with an equals sign"),
        pytest.param("--save_steps 0.1", "every 10% of its steps", id="a share"),
        pytest.param("--save_strategy epoch --save_steps 50", "every epoch", id="epochs"),
        pytest.param("--save_strategy no", "never", id="never"),
        pytest.param("--save_strategy best", "whenever its metric improves", id="best"),
        pytest.param("--save_steps nan", "", id="no number"),
        pytest.param("--save_steps 1e300", "", id="no number of steps"),
        pytest.param("--save_strategy x", "", id="an unknown strategy"),
    ],
)
def test_options_say_how_often_a_trainer_saves(args, saves):
    found = trainer(args)
    assert (found.library, found.saves) == ("transformers.Trainer", saves)


@pytest.mark.parametrize(
    ("settings", "saves"),
    [
        pytest.param("save_steps=7", "every 7 steps", id="steps"),
        pytest.param("save_strategy='epoch'", "every epoch", id="epochs"),
        pytest.param("save_steps=n", "", id="a variable"),
        pytest.param("**config", "", id="settings from elsewhere"),
        pytest.param("save_steps=7, **config", "", id="given beside settings from elsewhere"),
    ],
)
def test_the_text_says_how_often_a_trainer_saves(settings, saves):
    assert habit(SETTINGS.format(settings=settings)).saves == saves


def test_an_option_wins_over_the_text():
    assert habit(SETTINGS.format(settings="save_steps=7"), "--save_steps 9").saves == "every 9 steps"


def test_a_trainer_of_trl_has_a_config_of_its_own():
    found = habit(TRL)
    assert (found.library, found.saves, found.resumes) == ("transformers.Trainer", "every 20 steps", False)


@pytest.mark.parametrize(
    ("resume", "args", "resumes"),
    [
        pytest.param("", "", False, id="not in the text"),
        pytest.param("resume_from_checkpoint=True", "", True, id="always"),
        pytest.param("resume_from_checkpoint=None", "", False, id="never"),
        pytest.param("resume_from_checkpoint=last", "", True, id="by a variable"),
        pytest.param("resume_from_checkpoint='out/checkpoint-500'", "", False, id="always the same checkpoint"),
        pytest.param(
            "resume_from_checkpoint=last", "--resume_from_checkpoint True", True, id="the newest, by an option"
        ),
        pytest.param(
            "resume_from_checkpoint=last", "--resume_from_checkpoint out/checkpoint-5", False, id="one by an option"
        ),
    ],
)
def test_whether_a_trainer_resumes(resume, args, resumes):
    found = trainer(args, resume)
    assert found.resumes == resumes
    assert ("trainer.train(resume_from_checkpoint=checkpoint.newest(output_dir))" in found.missing) == (not resumes)


def test_a_trainer_with_our_callback_needs_nothing():
    text = "from cotenant import checkpoint\n" + TRAINER.format(resume="resume_from_checkpoint=last")
    assert habit(text).missing == ("callbacks=[checkpoint.for_trainer()]",)
    assert habit(text + "\nadd(checkpoint.for_trainer())").missing == ()


def test_a_model_without_its_optimizer_cannot_be_resumed():
    assert "save_only_model=False" in trainer("--save_only_model true").missing
    assert "save_only_model=False" in habit(SETTINGS.format(settings="save_only_model=True")).missing


@pytest.mark.parametrize(
    ("callback", "options", "fit", "expected"),
    [
        pytest.param("", "", "", ("every epoch", False), id="the library's default"),
        pytest.param(
            "ModelCheckpoint(every_n_train_steps=50)", "", "ckpt_path='last'", ("every 50 steps", True), id="steps"
        ),
        pytest.param("ModelCheckpoint(every_n_epochs=2)", "", "ckpt_path=None", ("every 2 epochs", False), id="epochs"),
        pytest.param("ModelCheckpoint(every_n_train_steps=n)", "", "ckpt_path=p", ("", True), id="a variable"),
        pytest.param("", "enable_checkpointing=False", "ckpt_path='a.ckpt'", ("never", False), id="never"),
    ],
)
def test_lightning(callback, options, fit, expected):
    found = habit(LIGHTNING.format(callback=callback, trainer=options, fit=fit))
    assert (found.library, (found.saves, found.resumes)) == ("Lightning", expected)
    assert 'callbacks=[checkpoint.for_lightning("state")]' in found.missing


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        pytest.param("", ("", False), id="no options"),
        pytest.param("--checkpointing_steps 100", ("every 100 steps", False), id="steps"),
        pytest.param("--checkpointing_steps epoch --resume_from_checkpoint latest", ("every epoch", True), id="epochs"),
        pytest.param("--resume_from_checkpoint out/step_5", ("", False), id="always the same checkpoint"),
    ],
)
def test_accelerate(args, expected):
    found = habit(ACCELERATE, args)
    assert (found.library, (found.saves, found.resumes)) == ("accelerate", expected)


def test_accelerate_without_save_state_never_saves():
    found = habit(ACCELERATE.replace("save_state", "gather"))
    assert found.saves == "never"
    assert found.advice(is_checkpointable=False).startswith("does not save its state (accelerate)")


def test_processes_of_a_group_stop_together():
    assert "should_stop_together" not in habit(TORCH.replace("DistributedDataParallel as DDP", "x")).missing[1]
    group = TORCH + "\nimport torch.distributed"
    assert "should_stop_together" in habit(group).missing[1]


def test_a_script_that_saves_and_never_loads_has_no_habit():
    assert habit("import torch\ntorch.save(model, 'model.pt')") is None


def test_a_launcher_needs_our_own_before_it():
    assert habit(OURS, launcher=("torchrun", "--standalone")).missing == ("python -m cotenant.checkpoint torchrun ...",)
    assert habit(OURS, launcher=("torchrun",), is_wrapped=True).missing == ()


READY = "saves on a signal (cotenant.checkpoint) and resumes"
ADDED = "`python -m cotenant.checkpoint torchrun ...`"


@pytest.mark.parametrize(
    ("launcher", "is_checkpointable", "expected"),
    [
        pytest.param((), False, f"{READY}: with --checkpointable it can be moved", id="ready"),
        pytest.param((), True, None, id="ready and requested"),
        pytest.param(
            ("torchrun",),
            False,
            f"{READY}; with --checkpointable it can be moved, once this is added: {ADDED}",
            id="not",
        ),
        pytest.param(
            ("torchrun",), True, f"{READY}; --checkpointable needs more, or a move loses its work: {ADDED}", id="early"
        ),
    ],
)
def test_advice(launcher, is_checkpointable, expected):
    assert habit(OURS, launcher=launcher).advice(is_checkpointable=is_checkpointable) == expected


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(b"torch.save(" + b"(" * 100_000, id="open brackets"),
        pytest.param(b"torch.save(" + b"-" * 100_000 + b"1)", id="nested operators"),
        pytest.param(b"x = torch.save" + b".a" * 60_000, id="a long chain of attributes"),
        pytest.param(b"x = torch.save" + b"+1" * 60_000, id="a long sum"),
        pytest.param(b"torch.save" + b"()" * 60_000, id="a long chain of calls"),
        pytest.param(b"\n".join(b" " * i + b"if torch.save:" for i in range(200)), id="nested blocks"),
        pytest.param(b"torch.save(\0)", id="a NUL"),
        pytest.param(b"# coding: nonsense\ntorch.save", id="an unknown coding"),
        pytest.param(b"# coding: utf-7\ntorch.save +AAA-", id="another coding"),
        pytest.param(b"\xff\xfetorch.save", id="no text"),
        pytest.param(b"torch.save(print 1)", id="Python 2"),
        pytest.param(b"", id="empty"),
    ],
)
def test_a_hostile_script_has_no_habit(source):
    assert len(source) <= MAX_SCRIPT_BYTES
    assert find_habit(source, []) is None


def test_a_script_that_is_too_long_has_no_habit():
    text = OURS.encode()
    assert find_habit(text + b"\n" + b"#" * (MAX_SCRIPT_BYTES - len(text) - 1), []) is not None
    assert find_habit(text + b"\n" + b"#" * (MAX_SCRIPT_BYTES - len(text)), []) is None
