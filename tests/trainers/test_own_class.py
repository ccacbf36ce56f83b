"""A class of the user's in TRL's place, and TRL's experimental trainers: with our seams mixed in, for a few steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.cli import main
from rlhf_cli.errors import ConfigError
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder, read_json
from tests.support.small_runs import PPO_SMALL

OWN = """
from trl import GRPOTrainer, RLOOTrainer

class Halved(GRPOTrainer):
    '''Its loss is half of GRPO's.'''

    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, inputs) / 2

class MaxRL(GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        output["advantages"] = 2 * output["advantages"].abs()
        return output

class OwnBaseline(RLOOTrainer):
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        output["advantages"] = 2 * output["advantages"]
        return output

class NotOne:
    pass

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


PPO = [*PPO_SMALL, "kl.coef=0.1"]


@pytest.mark.parametrize(
    "words",
    [
        ("trainer.class=./mine.py:Halved",),
        ("trainer=rloo",),
        ("trainer=rloo", "trainer.args.beta=0.1"),
        ("trainer=rloo", "trainer.args.normalize_advantages=true", "trainer.args.beta=0"),
        ("trainer.args.scale_rewards=batch",),
        ("aggregate=normalize_then_sum", "truncation=eos_penalty"),
        tuple(PPO),
    ],
    ids=" ".join,
)
def test_shares_of_the_advantages_add_up(train, mine: Path, words: tuple[str, ...]) -> None:
    _, folder = train("trainer.args.learning_rate=0.01", "guards.no_signal=off", *words)
    assert len(shares(folder)) >= 2  # one a round
    assert any(shares(folder))
    for one in filter(None, shares(folder)):
        assert sum(one.values()) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(
    "words",
    [
        ("trainer.class=./mine.py:MaxRL",),
        ("trainer.class=./mine.py:OwnBaseline", "trainer=rloo"),
        ("trainer.class=./mine.py:OwnBaseline", "trainer=rloo", "trainer.args.beta=0.1"),
    ],
    ids=" ".join,
)
def test_advantages_of_ones_own_have_no_shares(train, mine: Path, words: tuple[str, ...]) -> None:
    """Their parts are not known, and by TRL's formula they would sum to anything; the log says so once."""
    code, folder = train(*words, "guards.no_signal=off")
    assert code == 0
    assert shares(folder) == [{}] * 3
    name = words[0].rpartition(":")[2]
    assert sum("advantage_share" in line and name in line for line in folder.log.read_text().splitlines()) == 1
    assert main(["report", str(folder.path)]) == 0


def test_a_class_that_is_none_is_told_before_anything_is_loaded(train, mine: Path, capsys: Any) -> None:
    mine.write_text(OWN + "\nfrom mine_too import Halved as Other\n")
    (mine.parent / "mine_too.py").write_text("class Halved: pass\n")
    code, _ = train("trainer.class=./mine.py:Other")
    assert code == 2
    assert "this is no GRPOTrainer" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["orpo", "tpo"])
def test_experimental_trainers_of_pairs(workplace: Path, name: str) -> None:
    rows = [
        {"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": f"well {n}", "reference": str(n + 1)} for n in range(16)
    ]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [
        *(f"trainer={name}", "data=file", "data.path=rows.jsonl", "launch=cpu", "track=none", "run.name=one"),
        *("model.build.hidden_size=16", "model.build.num_layers=1", "model.build.warm_start=null"),
        *("trainer.args.max_steps=2", "trainer.args.per_device_train_batch_size=4"),
    ]
    assert main(["check", *words]) == 0
    assert main(["train", *words]) == 0
    folder = RunFolder(workplace / "runs" / name / "one")
    assert len(losses(folder)) == 2
    assert (folder.model / "model.safetensors").is_file()


def test_a_class_that_needs_another_argument_is_refused(place: Path) -> None:
    source = "from trl import GRPOTrainer\nclass Taught(GRPOTrainer):\n    def __init__(self, model, teacher): ...\n"
    (place / "mine.py").write_text(source)
    with pytest.raises(ConfigError) as caught:
        prepare(["+exp=quickstart", "trainer.class=./mine.py:Taught"])
    assert str(caught.value.where).startswith("trainer.class")
    (place / "mine.py").write_text(source.replace("teacher)", "teacher=None)"))
    prepare(["+exp=quickstart", "trainer.class=./mine.py:Taught"])
