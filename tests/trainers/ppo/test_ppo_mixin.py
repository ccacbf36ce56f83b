"""When the critic learns, is saved and is left out, and what a round does to the KL coefficient, by stand-ins."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from trl.trainer import grpo_trainer

from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.trainers.extensions import Extensions
from rlhf_cli.trainers.guard_mixin import GuardMixin
from rlhf_cli.trainers.pass_mixin import PassMixin
from rlhf_cli.trainers.ppo import ppo_mixin
from rlhf_cli.trainers.ppo.critic import KlPenalty
from rlhf_cli.trainers.ppo.ppo_mixin import PpoMixin, shuffled_prompts
from rlhf_cli.truncation import Bootstrap, EosPenalty, TruncationPolicy

KL = KlPenalty("loss", 0.3)
CRITIC = ["critic.weight", "critic.bias"]


class Critic:
    """Notes its calls."""

    def __init__(self, calls: list[Any], *, shares: bool) -> None:
        self.calls, self.shares_backward = calls, shares
        self.model, self.settings = torch.nn.Linear(1, 1), SimpleNamespace(warmup_steps=2)

    def backward(self, loss: str) -> None:
        self.calls.append(("backward", loss))

    def step(self) -> tuple[float, float]:
        self.calls.append("step")
        return 0.25, 0.5

    @contextlib.contextmanager
    def hidden_from_policy(self) -> Iterator[None]:
        self.calls.append("hidden")
        yield
        self.calls.append("seen")

    def prepare(self, trainer: Any, num_training_steps: int) -> None:
        self.calls.append(("prepare", num_training_steps))

    def save_state(self, folder: Path) -> None:
        self.calls.append(("save", folder))

    def load_state(self, folder: Path) -> None:
        self.calls.append(("load", folder))


class Trl:
    """Stands for TRL's trainer below the mixin."""

    def _note(self: Any, *given: Any) -> str:
        self.calls.append(given)
        return "of TRL"

    create_optimizer = create_scheduler = _save = _note

    def _load_best_model(self: Any) -> None:
        self.calls.append("best")


class Alone(PpoMixin, Trl):  # type: ignore[misc]
    """A trainer on one rank."""

    def __init__(self, *, shares: bool = False, kl: KlPenalty = KL, is_training: bool = True) -> None:
        self.calls = list[Any]()
        self.critic: Any = Critic(self.calls, shares=shares)
        self.model, self.kl, self.beta = torch.nn.Linear(1, 1).train(is_training), kl, 9.0
        self.args, self.state = SimpleNamespace(should_save=True), SimpleNamespace(global_step=0)
        self.accelerator: Any = SimpleNamespace(sync_gradients=True)
        self.extensions, self._metrics = Extensions(), {"train": defaultdict(list), "eval": defaultdict(list)}


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize(("step", "learns"), [(0, False), (1, False), (2, True)])
def test_the_critic_learns_from_every_micro_batch_and_the_policy_after_the_warm_up(
    monkeypatch: pytest.MonkeyPatch, shares: bool, is_last: bool, step: int, learns: bool
) -> None:
    """A critic that shares the policy's backward pass has its gradient from there, and is checked there."""

    def of_the_policy(self: Any, model: Any, *given: Any) -> Any:
        for parameter in model.parameters():
            parameter.grad = torch.ones(parameter.shape)
        return given

    monkeypatch.setattr(GuardMixin, "training_step", of_the_policy)
    trainer: Any = Alone(shares=shares)
    trainer.accelerator.sync_gradients, trainer.state.global_step, trainer._micro_batch = is_last, step, "batch"
    trainer._value_loss = lambda inputs: f"of {inputs}"
    trainer.refuse_non_finite = lambda losses, named: trainer.calls.append((losses, [name for name, _ in named]))
    assert trainer.training_step(trainer.model, "inputs", 5) == ("inputs", 5)
    own = [] if shares else [("backward", "of batch"), *([([], CRITIC)] if is_last else [])]
    hidden = [] if learns else ["hidden", "seen"]  # only the policy's gradients are dropped
    assert trainer.calls == [*own, *(["step"] if is_last else []), *hidden]
    assert trainer._metrics["train"] == ({"critic/learning_rate": [0.25], "critic/grad_norm": [0.5]} if is_last else {})
    assert all((parameter.grad is not None) is learns for parameter in trainer.model.parameters())


@pytest.mark.parametrize("shares", [True, False])
def test_policy_and_critic_are_optimized_apart_and_checked_and_saved_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shares: bool
) -> None:
    for name in ("save_state", "load_state"):
        monkeypatch.setattr(GuardMixin, name, lambda self, folder: self.calls.append(folder))
    trainer: Any = Alone(shares=shares)
    assert [name for name, _ in trainer._trained()] == ["weight", "bias", *([] if shares else CRITIC)]
    assert (trainer.create_optimizer("model"), trainer.create_scheduler(9)) == ("of TRL", "of TRL")
    trainer._save("folder")
    trainer.save_state(tmp_path)
    trainer.kl = replace(KL, coef=0.9)
    trainer.load_state(tmp_path)
    assert trainer.kl == KL
    trainer.args.should_save = False
    trainer.save_state(tmp_path / "of another rank")
    trainer.state.best_model_checkpoint = "checkpoint-4"
    trainer._load_best_model()
    assert trainer.calls == [
        *("hidden", ("model",), "seen", (9, None), ("prepare", 9), "hidden", ("folder", None), "seen"),
        *(tmp_path, ("save", tmp_path / "critic"), tmp_path, ("load", tmp_path / "critic")),
        *(tmp_path / "of another rank", "best", ("load", Path("checkpoint-4/critic"))),
    ]


@pytest.mark.parametrize(
    ("where", "inputs", "shares", "is_training", "expected"),
    [
        ("loss", {}, False, True, 0.3),
        ("loss", {"kl_coef": torch.tensor(0.1, dtype=torch.float64)}, False, True, 0.1),  # the round's own
        ("reward", {}, False, True, 0.0),
        ("loss", {}, True, True, 10.3),
        ("loss", {}, True, False, 0.3),
    ],
)
def test_a_loss_has_the_coefficient_of_its_round_and_the_shared_critic_s_loss(
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    inputs: dict[str, Any],
    shares: bool,
    is_training: bool,
    expected: float,
) -> None:
    monkeypatch.setattr(PassMixin, "_compute_loss", lambda self, model, inputs: torch.tensor(self.beta))
    trainer: Any = Alone(shares=shares, kl=KlPenalty(where, 0.3), is_training=is_training)
    trainer._value_loss = lambda given: torch.tensor(10.0 if given is inputs else 20.0)
    trainer._log_update = lambda loss, given: trainer.calls.append((loss.item(), given))
    assert trainer._compute_loss(trainer.model, inputs).item() == pytest.approx(expected)
    assert trainer.calls == [(pytest.approx(expected % 10), inputs)]  # of the policy alone
    assert (trainer.beta, trainer._micro_batch is inputs) == (9.0, True)


@pytest.mark.parametrize(
    ("where", "is_training", "expected"), [("reward", True, 0.36), ("reward", False, 0.3), ("none", True, 0.3)]
)
def test_a_round_of_training_adapts_the_coefficient_by_the_rows_that_count(
    monkeypatch: pytest.MonkeyPatch, where: str, is_training: bool, expected: float
) -> None:
    """Two rows, 100 % above the target, clipped to 20 %, of a horizon of 2: 0.3 (1 + 0.2 * 2 / 2)."""
    monkeypatch.setattr(GuardMixin, "_generate_and_score_completions", lambda self, inputs: {"of": inputs})
    measured = {"kl/k1_policy_ref_per_row": 2.0}
    monkeypatch.setattr(ppo_mixin, "rollout_metrics", lambda *given: measured if given[:2] == ("r", "a") else {})
    trainer: Any = Alone(kl=KlPenalty(where, 0.3, target=1.0, horizon=2), is_training=is_training)
    mode = "train" if is_training else "eval"
    trainer.ppo, trainer._rollout = None, ("r", "a")
    trainer._settled = SimpleNamespace(totals=torch.tensor([1.0, torch.nan, 2.0]))
    trainer._metrics[mode]["frac_reward_zero_std"].append(1.0)  # a metric of groups, and PPO has no groups
    assert trainer._generate_and_score_completions("rows") == {"of": "rows"}
    assert trainer._metrics[mode] == {"kl/k1_policy_ref_per_row": [2.0]}
    assert trainer.kl.coef == pytest.approx(expected)
    assert not hasattr(trainer, "_rollout")


def test_answers_of_a_prompt_stay_together_where_it_extends_over_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    of_trl = grpo_trainer.shuffle_sequence_dict

    def shuffle(self: object, batch: object) -> object:
        return grpo_trainer.shuffle_sequence_dict

    monkeypatch.setattr(GuardMixin, "_prepare_inputs", shuffle, raising=False)
    trainer: Any = Alone()
    trainer.args = SimpleNamespace(per_device_train_batch_size=4, steps_per_generation=2)
    trainer.accelerator.process_index = 2
    for num_generations, keeps in ((1, True), (3, False), (3, True)):
        trainer.num_generations, trainer.ppo = num_generations, SimpleNamespace(keeps_prompts=keeps)
        found = trainer._prepare_inputs("batch")
        if (num_generations, keeps) != (3, True):
            assert found is of_trl
    assert (found.func, found.keywords) == (shuffled_prompts, {"first": 16, "num_generations": 3})


DENSE, PLAIN, NO_SCORE = ([1.0, None], [[1.0], None]), ([1.0, 2.0], [[1.0], None]), ([None, None], [None, None])


@pytest.mark.parametrize(
    ("policy", "counted", "watched", "is_main", "is_told"),
    [
        (Bootstrap(mode="replace"), DENSE, DENSE, True, True),
        (Bootstrap(mode="replace"), DENSE, PLAIN, True, True),
        (Bootstrap(mode="replace"), DENSE, DENSE, False, False),
        (Bootstrap(mode="replace"), PLAIN, DENSE, True, False),
        (Bootstrap(mode="replace"), NO_SCORE, DENSE, True, False),
        (EosPenalty(mode="replace"), DENSE, DENSE, True, False),
    ],
)
def test_a_value_in_the_place_of_rewards_by_token_is_told_of(
    caplog: pytest.LogCaptureFixture, policy: TruncationPolicy, counted: Any, watched: Any, is_main: bool, is_told: bool
) -> None:
    """A row without a score says nothing, nor does a reward that only watches."""
    trainer: Any = Alone()
    trainer.truncation, trainer.accelerator.is_main_process = policy, is_main
    outcomes = {
        name: SimpleNamespace(raw=raw, tokens=tokens) for name, (raw, tokens) in {"a": counted, "b": watched}.items()
    }
    components = [Component("a", len), Component("b", len, weight=0.0)]
    trainer.reward_stack = SimpleNamespace(outcomes=outcomes, components=components)
    trainer._warn_of_dense_rewards()
    assert len(caplog.records) == is_told


def test_the_value_loss_and_what_it_clips_are_logged() -> None:
    """A half of the squared error of each token that counts: 0.5 and 2; twice the mean of the row is 2.5."""
    logged: dict[str, torch.Tensor] = {}
    settings = SimpleNamespace(value_clip=0.5, loss_coef=2.0)
    critic = SimpleNamespace(settings=settings, values=lambda *_, **__: torch.zeros(1, 3))
    trainer: Any = SimpleNamespace(
        critic=critic, loss_type="grpo", current_gradient_accumulation_steps=1, kept_share=lambda _: 1.0
    )
    trainer._packs_values, trainer._log_means = bool, lambda _, named: logged.update(named)
    given = {"returns": torch.tensor([[1.0, 2.0, 9.0]]), "rollout_values": torch.zeros(1, 3)}
    loss = PpoMixin._value_loss(trainer, given | {"completion_mask": torch.tensor([[1, 1, 0]])})
    assert (loss.item(), logged["ppo/value_loss"].tolist()) == (2.5, [[0.5, 2.0, 0.0]])
    assert logged["ppo/value_clip_fraction"].sum() == 0
