"""Callbacks of `cotenant.checkpoint` in the real training loops of libraries: nothing is lost, nothing made twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

from apart import apart
from cotenant import checkpoint
from cotenant.checkpoint import signals
from cotenant.daemon.doctor import _torchvision_version

torch = pytest.importorskip("torch")


def needs(*modules):
    """Skip without these; `torchvision`: where there is one, it must be importable, which shows its build."""
    absent = [module for module in modules if module != "torchvision" and find_spec(module) is None]
    if "torchvision" in modules and torch.__version__.endswith("+cpu") and "+cu" in _torchvision_version():
        absent.append("a torchvision for this torch")
    return pytest.mark.skipif(bool(absent), reason=f"not installed: {', '.join(absent)}")


STEPS = 6
SIGNAL_AFTER = 3


@pytest.fixture(autouse=True)
def reset_signal(monkeypatch):
    """As in a new process of a job whose signal is USR1; handlers are put back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    monkeypatch.setenv("COTENANT_CHECKPOINT_SIGNAL", "USR1")
    monkeypatch.setattr(signals, "_stop_requested", False)
    yield lambda: monkeypatch.setattr(signals, "_stop_requested", False)
    for number, handler in before.items():
        signal.signal(number, handler)


class Steps:
    """Steps in the order in which they were made; one of them gets the signal."""

    def __init__(self):
        self.made = []

    def make(self, step):
        self.made.append(step)
        if step == SIGNAL_AFTER:
            os.kill(os.getpid(), signal.SIGUSR1)


@needs("transformers", "accelerate")
@pytest.mark.parametrize("save_strategy", ["no", "steps"])
@apart
def test_trainer_saves_on_the_signal_and_continues_at_the_next_step(tmp_path, reset_signal, save_strategy):
    from transformers.utils import import_utils

    import_utils._torchvision_available = False  # a build for CUDA beside a torch for CPUs cannot be imported
    import transformers

    steps = Steps()

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x):
            return {"loss": self.layer(x).mean()}

    class Count(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            steps.make(state.global_step + 1)

    def trainer():
        args = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=STEPS,
            save_strategy=save_strategy,
            save_steps=2,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        data = [{"x": torch.ones(4)} for _ in range(64)]
        return transformers.Trainer(Model(), args, train_dataset=data, callbacks=[Count(), checkpoint.for_trainer()])

    first = trainer()
    with pytest.raises(SystemExit) as end:
        first.train(resume_from_checkpoint=checkpoint.newest(first.args.output_dir))
    assert end.value.code == 85
    assert steps.made == [1, 2, 3]
    (tmp_path / "checkpoint-5").mkdir()  # as if the process had been killed while it wrote this one
    reset_signal()
    second = trainer()
    found = checkpoint.newest(second.args.output_dir)
    assert Path(found).name == "checkpoint-3"
    second.train(resume_from_checkpoint=found)
    assert steps.made == [1, 2, 3, 4, 5, 6]


@pytest.mark.filterwarnings("ignore")
@needs("lightning", "torchvision")  # torchmetrics imports it
@apart
def test_lightning_saves_on_the_signal_and_continues_at_the_next_step(tmp_path, reset_signal):
    import lightning.pytorch as lightning

    steps = Steps()

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch, _):
            steps.make(self.global_step + 1)
            return self.layer(batch).mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    def fit():
        trainer = lightning.Trainer(
            max_steps=STEPS,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_checkpointing=False,
            callbacks=[checkpoint.for_lightning(str(tmp_path))],
        )
        loader = torch.utils.data.DataLoader(torch.ones(64, 4), batch_size=8)
        trainer.fit(Model(), loader, ckpt_path=checkpoint.newest(str(tmp_path)))

    with pytest.raises(SystemExit) as end:
        fit()
    assert end.value.code == 85
    assert steps.made == [1, 2, 3]
    reset_signal()
    fit()
    assert steps.made == [1, 2, 3, 4, 5, 6]


@needs("accelerate")
@apart
def test_accelerate_saves_on_the_signal_and_continues_at_the_next_step(tmp_path, reset_signal):
    import accelerate

    steps, weights = Steps(), []

    def train():
        accelerator = accelerate.Accelerator(cpu=True)
        layer = torch.nn.Linear(4, 1)
        layer, optimizer = accelerator.prepare(layer, torch.optim.AdamW(layer.parameters()))
        saved = checkpoint.for_accelerate(accelerator, str(tmp_path / "state"))
        first = saved.load()
        weights.append(layer.weight.detach().clone())
        for step in range(first, STEPS):
            accelerator.backward(layer(torch.ones(2, 4)).mean())
            optimizer.step()
            optimizer.zero_grad()
            steps.make(step + 1)
            weights.append(layer.weight.detach().clone())
            saved.step_end(step + 1)

    with pytest.raises(SystemExit) as end:
        train()
    assert end.value.code == 85
    last = weights[-1]
    (tmp_path / "state" / "steps-5").mkdir()  # as if the process had been killed while it wrote this one
    reset_signal()
    weights.clear()
    train()
    assert torch.equal(weights[0], last)
    assert steps.made == [1, 2, 3, 4, 5, 6]


SCRIPT = textwrap.dedent(
    """
    import os, signal, time

    import torch.distributed as dist

    from cotenant import checkpoint

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    checkpoint.install()
    for step in range(6):
        with open(f"steps-{rank}", "a") as made:
            made.write(f"{step}\\n")
        if step == 3 and rank == 0:
            os.kill(int(os.environ["WRAPPER"]), signal.SIGUSR1)  # passed on to both ranks, sooner or later
            while not checkpoint.should_stop():
                time.sleep(0.01)
        if checkpoint.should_stop_together():
            checkpoint.exit_saved()
    """
)


def test_all_processes_of_torchrun_save_at_the_same_step_and_the_exit_code_says_so(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    torchrun = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2 train.py"
    command = f"export WRAPPER=$$; exec {sys.executable} -m cotenant.checkpoint {torchrun}"
    env = {**os.environ, "COTENANT_CHECKPOINT_SIGNAL": "USR1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 85, done.stderr
    for rank in (0, 1):
        assert (tmp_path / f"steps-{rank}").read_text().split() == ["0", "1", "2", "3"]
