"""A class, advantages, callbacks and rewards of the user's, in TRL's place or beside it, for a few steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.cli import main
from rlhf_cli.config.imported_code import asked_of
from rlhf_cli.errors import ConfigError
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.trainers.pass_mixin import PassMixin
from tests.analysis.whatif.whatif_runs import advantages_if, answer, table
from tests.support.cut_runs import cut
from tests.support.small_runs import PPO_SMALL

pytestmark = pytest.mark.whole

OWN = """
import numpy as np
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState
from trl import GRPOTrainer

class Halved(GRPOTrainer):
    '''Its loss is half of GRPO's.'''

    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, inputs) / 2

class MaxRL(GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        output["advantages"] = 2 * output["advantages"].abs()
        return output

def staged(prompts, trainer):
    prompt_ids, images, fields = trainer._tokenize_prompts(prompts)
    each = trainer.num_generations
    first = trainer._generate_single_turn(prompt_ids, images, fields, each)[0]
    longer = [[*prompt, *ids[:2]] for prompt, ids in zip(prompt_ids, first)]
    second = trainer._generate_single_turn(longer, images, fields, each)[0]
    both = [[*one[:2], *other] for one, other in zip(first, second)]
    return {"prompt_ids": prompt_ids, "completion_ids": both, "logprobs": None}

class Staged(GRPOTrainer):
    def __init__(self, *args, **named):
        super().__init__(*args, rollout_func=staged, **named)

def ranks(totals, groups):
    return totals - np.arange(len(totals)) / 10

def tokens(totals, lengths):
    return [[float(t) for t in range(n)] for n in lengths]

class Watch(TrainerCallback, ExportableState):
    seen = 0

    def on_step_end(self, args, state, control, **named):
        self.seen += 1
        with open("steps.txt", "a") as file:
            file.write(f"{state.global_step}:{self.seen} ")

    def state(self):
        return {"args": {}, "attributes": {"seen": self.seen}}

def counted(completions, trainer_state=None, **columns):
    with open("calls.txt", "a") as file:
        file.write(f"{len(completions)} ")
    return [float(len(text)) for text in completions]
"""


@pytest.fixture
def mine(workplace: Path) -> Path:
    file = workplace / "mine.py"
    file.write_text(OWN)
    return file


def losses(folder: RunFolder) -> list[float]:
    return series(read_metrics(folder.metrics), "loss")[1]


def test_a_class_of_ones_own_runs_with_our_seams(train, mine: Path) -> None:
    more = ["trainer.args.max_steps=1", "rewards.brevity.gate={by: correct, at_least: 0}", "truncation=eos_penalty"]
    code, folder = train("trainer.class=./mine.py:Halved", *more)
    plain_code, plain = train(*more, name="two")
    assert (code, plain_code) == (0, 0)
    # The first step's loss is that of the same completions by the same weights.
    assert losses(folder)[0] == pytest.approx(losses(plain)[0] / 2, abs=1e-4)
    event = read_metrics(folder.metrics)[0]
    assert {"rewards/brevity/open_fraction", "rewards/truncation/fraction"} <= event.keys()
    frozen = folder.read_config()["trainer"]
    assert frozen["class"] == f"{mine}:Halved"
    assert read_json(folder.provenance)["sha256"]["trainer.class"]
    assert (folder.model / "model.safetensors").is_file()


def test_a_rollout_of_two_stages_begins_with_ratios_of_one(train_ppo, mine: Path, monkeypatch: Any) -> None:
    """The policy has not changed since the rollout: what the last stage kept would give ratios of hundreds."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    code, folder = train_ppo("trainer.class=./mine.py:Staged", "trainer.passes=auto")
    assert code == 0
    assert read_metrics(folder.metrics)[0]["ppo/ratio_max"] == pytest.approx(1.0, abs=1e-4)


def shares(folder: RunFolder) -> list[dict[str, float]]:
    """Return each step's shares of the advantages."""
    found = [one for one in read_metrics(folder.metrics) if "rewards/correct/mean" in one]
    return [{name: value for name, value in one.items() if name.endswith("/advantage_share")} for one in found]


@pytest.mark.parametrize(
    "words",
    [
        ("trainer.class=./mine.py:Halved",),
        ("trainer=rloo", "trainer.args.beta=0.1"),
        ("aggregate=normalize_then_sum", "truncation=eos_penalty"),
        (*PPO_SMALL, "kl.coef=0.1"),
    ],
    ids=" ".join,
)
def test_shares_of_the_advantages_add_up(train, mine: Path, words: tuple[str, ...]) -> None:
    _, folder = train("trainer.args.learning_rate=0.01", "guards.no_signal=off", *words)
    assert len(shares(folder)) >= 2  # one a round
    assert any(shares(folder))
    for one in filter(None, shares(folder)):
        assert sum(one.values()) == pytest.approx(1.0, abs=1e-4)


def test_advantages_of_ones_own_have_no_shares(train, mine: Path) -> None:
    """Their parts are not known, and by TRL's formula they would sum to anything; the log says so once."""
    code, folder = train("trainer.class=./mine.py:MaxRL", "guards.no_signal=off")
    assert (code, shares(folder)) == (0, [{}] * 3)
    assert sum("advantage_share" in line and "MaxRL" in line for line in folder.log.read_text().splitlines()) == 1
    assert main(["report", str(folder.path)]) == 0


@pytest.mark.parametrize("words", [(), ("trainer=rloo", "trainer.args.beta=0")], ids=["grpo", "rloo"])
def test_a_function_of_rows(train, mine: Path, words: tuple[str, ...]) -> None:
    """`whatif` calls it on the stored scores with the new weights."""
    code, folder = train("advantages.fn=./mine.py:ranks", "trainer.args.max_steps=1", *words)
    assert code == 0
    stored = table(folder, 1)
    expected = [total - row / 10 for row, total in enumerate(stored["total"])]
    assert stored["advantage"] == pytest.approx(expected, abs=1e-6)
    assert not [name for name in read_metrics(folder.metrics)[0] if name.endswith("/advantage_share")]
    assert read_json(folder.provenance)["sha256"]["advantages"]
    assert f"advantages.fn: {mine}:ranks" in asked_of(folder.read_config())
    halved = [x - 0.5 * c for x, c in zip(stored["advantage"], stored["correct"], strict=True)]
    assert advantages_if(folder, "rewards.correct.weight=0.5")[1] == pytest.approx(halved, abs=1e-6)


def test_a_function_of_tokens(train, mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of GRPO is given them, one of rows refuses them."""
    found: list[Any] = []
    compute = PassMixin._compute_loss

    def watch(self: Any, model: Any, inputs: Any) -> Any:
        found.extend(zip(inputs["advantages"].tolist(), inputs["completion_mask"].sum(dim=1).tolist(), strict=True))
        return compute(self, model, inputs)

    monkeypatch.setattr(PassMixin, "_compute_loss", watch)
    code, folder = train("advantages.fn=./mine.py:tokens", "trainer.args.max_steps=1")
    assert code == 0
    assert found
    for row, length in found:
        assert row == [*map(float, range(length)), *[0.0] * (len(row) - length)]
    (first,) = answer(folder, "rewards.correct.weight=0.5").rounds
    assert first.why is not None
    code, folder = train("advantages.fn=./mine.py:tokens", "trainer=rloo", "trainer.args.beta=0", name="two")
    assert code != 0
    assert not (folder.model / "model.safetensors").exists()


def test_a_class_that_needs_another_argument_is_refused(mine: Path) -> None:
    source = "from trl import GRPOTrainer\nclass Taught(GRPOTrainer):\n    def __init__(self, model, teacher): ...\n"
    mine.write_text(source)
    with pytest.raises(ConfigError) as caught:
        prepare(["+exp=quickstart", "trainer.class=./mine.py:Taught"])
    assert str(caught.value.where).startswith("trainer.class")
    mine.write_text(source.replace("teacher)", "teacher=None)"))
    prepare(["+exp=quickstart", "trainer.class=./mine.py:Taught"])


def test_a_callback_is_called_frozen_and_hashed(train, mine: Path, tmp_path: Path) -> None:
    code, folder = train("trainer.callbacks=[./mine.py:Watch]", "trainer.args.save_steps=1")
    assert (code, Path("steps.txt").read_text()) == (0, "1:1 2:2 3:3 ")
    assert folder.read_config()["trainer"]["callbacks"] == [f"{mine}:Watch"]
    assert "trainer.callbacks[0]" in read_json(folder.provenance)["sha256"]
    stopped = cut(folder, 2, tmp_path / "cut")
    mine.write_text(OWN + "# changed\n")
    assert main(["resume", str(stopped.path)]) == 2
    assert main(["resume", str(stopped.path), "--allow", "code"]) == 0
    assert Path("steps.txt").read_text() == "1:1 2:2 3:3 3:3 "


EVALUATED = [
    *("trainer.args.eval_strategy=steps", "trainer.args.eval_steps=3", "data.eval.fraction=0.25", "expect=null"),
    *("trainer.args.per_device_eval_batch_size=16", "trainer.args.log_completions=true"),
]


def test_a_reward_for_evaluations(train, mine: Path) -> None:
    """Training makes the same steps with and without it; only evaluations call it. Another one watches the training."""
    reward = ["rewards.expert.fn=./mine.py:counted", "rewards.expert.trial=false"]
    code, folder = train(*EVALUATED, *reward, "rewards.expert.when=eval", name="a")
    calls = Path("calls.txt").read_text().split()
    assert code == 0
    assert calls
    other_code, other = train(*EVALUATED, name="b")
    assert (other_code, Path("calls.txt").read_text().split()) == (0, calls)
    with_it, without = ([event for event in read_metrics(one.metrics) if "loss" in event] for one in (folder, other))
    for name in ("loss", "reward"):
        assert [event[name] for event in with_it] == [event[name] for event in without]
    assert not [name for event in with_it for name in event if name.startswith("rewards/expert")]
    assert "expert" in (folder.path / "eval/training/step-3.json").read_text()
    assert main(["why", str(folder.path)]) in (0, 1)
    assert train(*reward, "rewards.expert.weight=0", name="c")[0] == 0  # the negative control
    assert len(Path("calls.txt").read_text().split()) == len(calls) + 3


def test_dora_trains_and_its_critic_shares_the_body(train) -> None:
    adapter = [f"model.lora.{word}" for word in ("r=2", "use_dora=true", "use_rslora=true", "modules_to_save=[norm]")]
    shared = ["trainer=ppo", "critic.share=lora", "trainer.args.gradient_checkpointing=false", "kl.where=none"]
    names = ("num_generations", "steps_per_generation", "num_iterations", "max_steps")
    once = [f"trainer.args.{name}=1" for name in names]
    code, folder = train(*shared, *once, *adapter)
    assert code == 0
    saved = read_json(folder.model / "adapter_config.json")
    assert (saved["use_dora"], saved["use_rslora"], saved["modules_to_save"]) == (True, True, ["norm"])
