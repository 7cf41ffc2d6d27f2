"""`cotenant estimate --model`: which script it stands for, and what it refuses."""

from __future__ import annotations

import pytest

from cotenant.cli.estimate.model import ModelOptions, note_texts_alone, shown
from cotenant.cli.estimate.options import ScriptOptions, SummaryOptions
from cotenant.core.errors import UsageError


def model(**options):
    return ModelOptions(**{"model": None, "task": None, "length": None, **options})


def script(name=None):
    return ScriptOptions(script=name)


def summary(*, batch_size=None, tokens=None):
    return SummaryOptions(batch_size=batch_size, tokens=tokens)


def test_without_it_nothing_changes():
    given = script("train.py"), summary(batch_size=4)
    assert model().script(*given) == given


def test_the_shipped_script_gets_the_options(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    chosen, rest = model(model=str(tmp_path), task="lora", length=64).script(script(), summary(batch_size=8))
    assert rest.batch_size is None
    assert not rest.is_wanted(chosen)
    words = ["train_model.py", "--config", f"{tmp_path}/config.json", "--task", "lora", "--batch-size", "8", "--length"]
    assert shown((chosen.script, *chosen.args)).split() == [*words, "64"]


@pytest.mark.parametrize(
    ("config", "task", "is_noted"),
    [
        ('{"model_type": "gemma3", "vision_config": {}}', "lora", True),
        ('{"model_type": "clip", "vision_config": {}}', "classify", False),
        ('{"model_type": "gpt2"}', "sft", False),
    ],
)
def test_images_that_are_not_counted_are_noted(tmp_path, capsys, config, task, is_noted):
    (tmp_path / "config.json").write_text(config)
    chosen, _ = model(model=str(tmp_path), task=task).script(script(), summary())
    note_texts_alone(chosen)
    assert ("images add memory that is not counted" in capsys.readouterr().err) == is_noted


def test_a_users_script_is_shown_with_its_folder():
    assert shown(("jobs/train_model.py", "--lr 1")) == "jobs/train_model.py '--lr 1'"


@pytest.mark.parametrize(
    ("options", "name", "tokens", "message"),
    [
        pytest.param({"task": "sft"}, "train.py", None, "`--task` is for `--model NAME`", id="task alone"),
        pytest.param({"length": 3}, None, None, "`--length` is for `--model NAME`", id="length alone"),
        pytest.param({"model": "gpt2"}, "train.py", None, "instead of a script, and `train.py`", id="with a script"),
        pytest.param({"model": "gpt2"}, None, 3, "`--tokens` is for the summary", id="with tokens"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, name, tokens, message):
    with pytest.raises(UsageError, match=message):
        model(**options).script(script(name), summary(tokens=tokens))
