"""The critic in real runs: what trains it and what must not, that nothing of it leaks, what is saved of it."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch
from peft import AutoPeftModelForTokenClassification
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, TrainerCallback

from rlhf_cli.cli import main
from rlhf_cli.errors import ModelError
from rlhf_cli.models.critic_model import build_critic
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.status import read_status
from rlhf_cli.trainers.ppo.critic import SeparateCritic
from rlhf_cli.trainers.ppo.lora_critic import SharedLoraCritic
from tests.support.random_reward_model import save_random_reward_model
from tests.support.tolerances import MODEL, MODEL_OF_TENSORS

Weights = dict[str, torch.Tensor]

SHARED = ["+model.lora.r=4", "critic.share=lora", "trainer.args.gradient_checkpointing=false"]
BOTH = pytest.mark.parametrize("arrangement", [[], SHARED], ids=["separate", "shared"])


class Watched(TrainerCallback):
    """Notes weights after every step, and the critic's gradients, as they are clipped, at every step of its own."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.critic = trainer.critic
        self.policy: list[Weights] = []
        self.values: list[Weights] = []
        self.gradients: list[Weights] = []
        self.clipped: list[float] = []
        self.used_learning_rates: list[float] = []
        self.inputs: list[dict[str, Any]] = []
        """The last micro-batch of every step."""
        self.before_last_step: Callable[[], None] = lambda: None
        trainer.add_callback(self)
        step = self.critic.step
        self.critic.step = lambda: self._step(step)

    def named(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """The critic's own parameters."""
        own = {id(parameter) for parameter in self.critic.parameters()}
        named = self.critic.model.named_parameters()
        return ((name, parameter) for name, parameter in named if id(parameter) in own)

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.on_step_end(args, state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        own = {name for name, _ in self.named()} if self.critic.shares_backward else set()
        policy = self.trainer.model.state_dict()
        self.policy.append({name: value.clone() for name, value in policy.items() if name not in own})
        self.values.append({name: parameter.detach().clone() for name, parameter in self.named()})

    def _step(self, step: Callable[[], float]) -> float:
        optimizer = self.critic._optimizer
        self.gradients.append({name: parameter.grad.clone() for name, parameter in self.named()})
        self.inputs.append(self.trainer._micro_batch)
        self.used_learning_rates.append(optimizer.param_groups[0]["lr"])
        if self.trainer.state.global_step == self.trainer.state.max_steps - 1:
            self.before_last_step()
        note = optimizer.step

        def clipped_step(*args: Any, **named: Any) -> Any:
            norms = [parameter.grad.norm() for _, parameter in self.named()]
            self.clipped.append(torch.stack(norms).norm().item())
            return note(*args, **named)

        optimizer.step = clipped_step
        try:
            return step()
        finally:
            del optimizer.step


@pytest.fixture
def watch(train_ppo, before_training) -> Callable[..., Watched]:
    """`watch(*overrides)` runs the small PPO experiment and returns what was seen of it; `on` is given it at first."""
    found: list[Watched] = []
    starts: list[Callable[[Watched], None]] = []

    def begin(trainer: Any) -> None:
        found.append(Watched(trainer))
        for start in starts:
            start(found[-1])

    before_training(begin)

    def run(*overrides: str, name: str = "one", on: Callable[[Watched], None] | None = None) -> Watched:
        starts[:] = [on] if on else []
        code, folder = train_ppo(*overrides, name=name)
        assert code == 0
        assert read_status(folder).state == "finished"
        found[-1].folder = folder
        return found[-1]

    return run


def is_same(one: Weights, other: Weights) -> bool:
    assert one.keys() == other.keys()
    return all(torch.equal(value, other[name]) for name, value in one.items())


def logged(folder: RunFolder, name: str) -> list[float]:
    return series(read_metrics(folder.metrics), name)[1]


class TestWarmUp:
    @BOTH
    @pytest.mark.parametrize("accumulation", [1, 2])
    def test_the_critic_alone_learns_at_first(self, watch, arrangement: list[str], accumulation: int) -> None:
        seen = watch(*arrangement, "critic.warmup_steps=2", f"trainer.args.gradient_accumulation_steps={accumulation}")
        start, first, second, third = seen.policy
        assert is_same(start, first)
        assert is_same(start, second)
        assert not is_same(start, third)
        assert [is_same(*pair) for pair in zip(seen.values, seen.values[1:], strict=False)] == [False] * 3
        assert logged(seen.folder, "grad_norm")[:2] == [0.0, 0.0]

    @BOTH
    def test_without_one_the_policy_learns_at_once(self, watch, arrangement: list[str]) -> None:
        seen = watch(*arrangement)
        assert not is_same(seen.policy[0], seen.policy[1])


class TestOptimizer:
    @BOTH
    def test_its_learning_rate_follows_the_schedule(self, watch, arrangement: list[str]) -> None:
        seen = watch(*arrangement, "trainer.args.lr_scheduler_type=cosine", "critic.learning_rate=0.04")
        wanted = [0.02 * (1 + math.cos(math.pi * step / 3)) for step in range(3)]
        assert seen.used_learning_rates == pytest.approx(wanted)
        assert logged(seen.folder, "critic/learning_rate") == pytest.approx(wanted)
        assert logged(seen.folder, "learning_rate") == pytest.approx([rate / 40 for rate in wanted])

    @BOTH
    def test_its_gradient_is_clipped_alone_and_logged_as_it_was(self, watch, arrangement: list[str]) -> None:
        seen = watch(*arrangement, "critic.max_grad_norm=0.001", "critic.loss_coef=1000")
        assert max(seen.clipped) <= 0.001 * (1 + 1e-4)
        before = [torch.cat([one.flatten() for one in step.values()]).norm().item() for step in seen.gradients]
        assert logged(seen.folder, "critic/grad_norm") == pytest.approx(before, rel=1e-4)
        assert min(before) > 0.01

    @BOTH
    def test_neither_loss_reaches_the_other_s_parameters(self, watch, arrangement: list[str]) -> None:
        """However large the value loss, step 1 of the policy is the same to the last bit, as is its gradient's norm."""
        small = watch(*arrangement, "critic.loss_coef=1e-6", "trainer.args.max_steps=1", name="small")
        large = watch(*arrangement, "critic.loss_coef=1e6", "trainer.args.max_steps=1", name="large")
        assert is_same(small.policy[1], large.policy[1])
        assert not is_same(small.policy[0], small.policy[1])
        assert logged(small.folder, "grad_norm") == logged(large.folder, "grad_norm")
        norms = [logged(run.folder, "critic/grad_norm")[0] for run in (small, large)]
        assert norms[1] == pytest.approx(1e12 * norms[0], rel=1e-3)

    @BOTH
    def test_each_has_what_the_other_has_not(self, watch, arrangement: list[str]) -> None:
        seen = watch(*arrangement, "trainer.args.max_steps=1")
        own = {id(one) for group in seen.critic._optimizer.param_groups for one in group["params"]}
        policys = {id(one) for group in seen.trainer.optimizer.param_groups for one in group["params"]}
        assert own == {id(parameter) for parameter in seen.critic.parameters()}
        assert policys == {id(one) for one in seen.critic.not_mine(seen.trainer.model) if one.requires_grad}
        assert not own & policys
        assert own
        assert policys

    @BOTH
    def test_two_micro_batches_are_worth_one_of_twice_the_size(self, watch, arrangement: list[str]) -> None:
        settings = [*arrangement, "trainer.args.max_steps=1", "critic.loss_coef=1"]
        one_window = ["trainer.args.per_device_train_batch_size=16", "trainer.args.steps_per_generation=1"]
        whole = watch(*settings, *one_window, name="whole")
        halves = watch(*settings, "trainer.args.gradient_accumulation_steps=2", name="halves")
        for name, gradient in whole.gradients[0].items():
            torch.testing.assert_close(halves.gradients[0][name], gradient, **MODEL_OF_TENSORS)
        assert logged(whole.folder, "critic/grad_norm")[0] > 0.01


class Exchanging(torch.nn.Module):
    """Stands for DDP, which settles in the forward pass whether the ranks exchange gradients in the backward one."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.is_off = False
        self.noted: list[tuple[str, bool]] = []

    def forward(self, **inputs: Any) -> Any:
        self.noted.append(("forward", self.is_off))
        found = self.model(**inputs)
        found.logits.register_hook(lambda gradient: self.noted.append(("backward", self.is_off)))
        return found

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        self.is_off = True
        yield
        self.is_off = False


class TestAccumulation:
    def test_ranks_exchange_gradients_with_the_last_micro_batch_of_a_step_alone(self, watch) -> None:
        ranks: list[Exchanging] = []

        def wrap(seen: Watched) -> None:
            prepare = seen.critic.prepare

            def wrapped(*args: Any) -> None:
                prepare(*args)
                ranks.append(Exchanging(seen.critic._wrapped))
                seen.critic._wrapped = ranks[-1]
                seen.critic.rollout_values = rollout_without(seen.critic, ranks[-1])

            seen.critic.prepare = wrapped

        watch("trainer.args.gradient_accumulation_steps=2", "trainer.args.max_steps=2", on=wrap)
        one_step = [("forward", True), ("backward", True), ("forward", False), ("backward", False)]
        assert ranks[0].noted == one_step * 2

    @pytest.mark.filterwarnings("ignore:`gradient_checkpointing_:FutureWarning")  # of TRL's calls
    def test_gradient_checkpointing_changes_no_gradient(self, watch) -> None:
        calls: list[int] = []

        def count(seen: Watched) -> None:
            layer = seen.critic.model.model.layers[0].self_attn
            layer.register_forward_hook(lambda *args: calls.append(1) if torch.is_grad_enabled() else None)

        words = ["critic.init=./rm", "trainer.args.max_steps=1"]
        save_random_reward_model(Path("rm"))
        seen = [
            watch(*words, f"trainer.args.gradient_checkpointing={on}", name=f"checkpointing-{on}", on=count)
            for on in ("false", "true")
        ]
        assert len(calls) == 1 + 2  # with it, a layer's forward pass is done again in the backward one
        for name, gradient in seen[0].gradients[0].items():
            torch.testing.assert_close(seen[1].gradients[0][name], gradient)
            assert gradient.any() or "embed" in name, name


def rollout_without(critic: Any, wrapper: Exchanging) -> Callable[..., torch.Tensor]:
    """Rollout values from the model itself: without a gradient there is nothing to note."""
    compute = critic.rollout_values

    def run(*args: Any) -> torch.Tensor:
        critic._wrapped = wrapper.model
        try:
            return compute(*args)
        finally:
            critic._wrapped = wrapper

    return run


class TestValues:
    def test_dropout_is_in_training_and_not_in_what_the_rollout_was_worth(self, watch) -> None:
        for arrangement in ([], SHARED):
            seen = watch(*arrangement, "critic.dropout=0.5", name=f"dropout{len(arrangement)}", on=spread_head)
            batch, autocast = seen.inputs[-1], seen.trainer.accelerator.autocast
            ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
            mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
            seen.trainer.model.train()
            with torch.no_grad():
                assert not torch.equal(seen.critic.values(batch, autocast), seen.critic.values(batch, autocast))
            width = batch["completion_ids"].shape[1]
            first, second = (seen.critic.rollout_values(ids, mask, width, 4, autocast) for _ in range(2))
            assert torch.equal(first, second)
            assert first.any()
            assert seen.trainer.model.training
            assert seen.critic.model.training

    def test_from_the_policy_the_first_rollout_is_worth_nothing(self, watch) -> None:
        for arrangement in ([], SHARED):
            seen = watch(*arrangement, "trainer.args.max_steps=1", name=f"worth{len(arrangement)}")
            assert logged(seen.folder, "ppo/values_mean") == [0.0]

    def test_from_a_reward_model_it_is_worth_something(self, watch, workplace: Path) -> None:
        save_random_reward_model(workplace / "rm")
        seen = watch("critic.init=./rm", "trainer.args.max_steps=1")
        assert abs(logged(seen.folder, "ppo/values_mean")[0]) > 0.01
        assert not is_same(seen.values[0], seen.values[1])


def spread_head(seen: Watched) -> None:
    """A head that is not 0, so that what is before it shows."""
    head = seen.critic.model.critic_head if seen.critic.shares_backward else seen.critic.model.score
    torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(1))


def spread_adapter(seen: Watched) -> None:
    """An adapter that is not 0: as it begins, it would change nothing even if it were active."""
    generator = torch.Generator().manual_seed(2)
    for name, parameter in seen.named():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, generator=generator)


class TestSharedBackbone:
    def test_every_tensor_of_it_gets_a_gradient(self, watch) -> None:
        """Head and B begin at 0, so that A has to wait for the third step until its gradient is not 0 any more."""
        seen = watch(*SHARED, "critic.learning_rate=0.01")
        assert [len(step) for step in seen.gradients] == [2 * 7 + 2] * 3  # A and B of seven layers, the head's two
        assert all(gradient.any() for gradient in seen.gradients[2].values())
        assert all(gradient.any() for name, gradient in seen.gradients[0].items() if name == "critic_head.bias")

    def test_the_first_step_is_refused_when_one_got_none(self, train_ppo, monkeypatch, capsys) -> None:
        monkeypatch.setattr(SharedLoraCritic, "_take_gradients", lambda self: None)
        code, folder = train_ppo(*SHARED)
        assert code == 1
        assert "tensors of the LoRA critic got no gradient" in capsys.readouterr().err
        assert read_status(folder).state == "failed"

    def test_gradient_checkpointing_is_refused_under_its_other_name(self, train_ppo, capsys) -> None:
        """What checks the configuration may look at one name; transformers heeds the other one first."""
        code, _ = train_ppo(*SHARED, "trainer.args.activation_checkpointing=true")
        assert code == 2
        assert "activation checkpointing do not go together" in capsys.readouterr().err

    def test_what_generation_and_reference_switch_off_is_switched_on_again(self, watch) -> None:
        """The guard looks at step 1 alone; PEFT freezes the adapter in every round."""
        frozen: list[bool] = []

        def look(seen: Watched) -> None:
            take = seen.critic._take_gradients

            def note() -> None:
                frozen.append(not all(parameter.requires_grad for _, parameter in seen.named()))
                take()

            seen.critic._take_gradients = note

        seen = watch(*SHARED, "critic.learning_rate=0.01", on=look)
        assert True in frozen[2:]  # else there would be nothing to see to
        assert not is_same(seen.values[-2], seen.values[-1])

    def test_the_body_stays_as_it_was_and_its_own_adapter_learns(self, watch) -> None:
        seen = watch(*SHARED)
        first, last = seen.policy[0], seen.policy[-1]
        changed = {name for name in first if not torch.equal(first[name], last[name])}
        assert changed
        assert all(".default." in name for name in changed)
        assert not any(".critic." in name or "critic_head" in name for name in first)

    def test_its_gradient_is_that_of_a_plain_model_with_the_same_adapter(self, watch, workplace: Path) -> None:
        def save_it(seen: Watched) -> None:
            spread_head(seen)
            spread_adapter(seen)
            seen.before_last_step = lambda: seen.critic.save(workplace / "before")

        seen = watch(*SHARED, "trainer.args.max_steps=2", "critic.loss_coef=0.7", "critic.value_clip=null", on=save_it)
        batch, gradients = seen.inputs[-1], seen.gradients[-1]
        plain = AutoPeftModelForTokenClassification.from_pretrained(
            workplace / "before", num_labels=1, is_trainable=True
        ).eval()
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        width = batch["completion_ids"].shape[1]
        values = plain(input_ids=ids, attention_mask=mask).logits[:, -width - 1 : -1, 0]
        errors = 0.5 * (values - batch["returns"]).square() * batch["completion_mask"]
        # dapo: over the tokens of the round, of which this is one of two windows
        (0.7 * errors.sum() / (batch["num_items_in_batch"] / 2)).backward()
        by_name = {
            name.replace(".default.", ".").removeprefix("base_model.model."): parameter.grad
            for name, parameter in plain.named_parameters()
            if parameter.grad is not None
        }
        for name, gradient in gradients.items():
            plainly = name.replace(".critic.", ".").removeprefix("base_model.model.")
            plainly = plainly.replace("critic_head.", "score.modules_to_save.")
            torch.testing.assert_close(gradient, by_name.pop(plainly), **MODEL_OF_TENSORS)
        assert not by_name
        assert max(gradient.abs().max() for gradient in gradients.values()) > 0.01

    def test_generation_and_reference_know_nothing_of_it(self, watch) -> None:
        """While the policy is held, a critic with another adapter reads the same completions."""
        settings = [*SHARED, "critic.warmup_steps=9", "kl.coef=0.1"]
        quiet = watch(*settings, name="quiet")
        loud = watch(*settings, name="loud", on=lambda seen: (spread_head(seen), spread_adapter(seen)))
        for step in (1, 3):
            assert completions(quiet.folder, step) == completions(loud.folder, step)
        assert logged(loud.folder, "kl/k1_policy_ref") == pytest.approx([0.0, 0.0], **MODEL)
        assert logged(quiet.folder, "entropy") == logged(loud.folder, "entropy")
        assert abs(logged(loud.folder, "ppo/values_mean")[0]) > 0.1  # it is there

    def test_the_reference_is_the_body_alone_while_the_policy_moves_away(self, watch) -> None:
        """The reference's log-probabilities of one batch, asked for once more after training, are those of the base."""
        seen = watch(
            *SHARED, "trainer.args.learning_rate=0.1", on=lambda seen: (spread_head(seen), spread_adapter(seen))
        )
        batch, trainer = seen.inputs[-1], seen.trainer
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        width = batch["completion_ids"].shape[1]
        base = AutoModelForCausalLM.from_pretrained(trainer.model.get_base_model().config.name_or_path)
        with torch.no_grad(), trainer.model.disable_adapter():
            reference = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, width)[0]
        with torch.no_grad():
            policy = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, width)[0]
            logits = base(input_ids=ids, attention_mask=mask).logits[:, -width - 1 : -1]
        by_hand = logits.log_softmax(dim=-1).gather(2, ids[:, -width:].unsqueeze(2)).squeeze(2)
        seen_tokens = batch["completion_mask"].bool()
        torch.testing.assert_close(reference[seen_tokens], by_hand[seen_tokens], **MODEL_OF_TENSORS)
        assert not torch.allclose(reference[seen_tokens], policy[seen_tokens], atol=1e-2)

    def test_ranks_look_for_no_parameter_that_the_policy_s_forward_pass_leaves_out(self, watch) -> None:
        seen = watch(*SHARED, "trainer.args.max_steps=1")
        assert seen.trainer.args.ddp_find_unused_parameters is False


def completions(folder: RunFolder, step: int) -> list[str]:
    table = pyarrow.parquet.read_table(folder.path / "completions" / f"completions_{step:05d}.parquet")
    return table.column("completion").to_pylist()


class TestWhatIsSaved:
    @pytest.mark.parametrize("lora", [[], ["+model.lora.r=4"]], ids=["full", "lora"])
    @pytest.mark.parametrize("share", ["none", "lora"])
    def test_the_policy_as_grpo_saves_it(self, train, train_ppo, lora: list[str], share: str) -> None:
        if share == "lora" and not lora:
            pytest.skip("a critic on the policy's body wants a policy that is an adapter")
        saving = ["trainer.args.save_steps=2", "trainer.args.gradient_checkpointing=false", *lora]
        _, grpo = train(*saving, name="grpo")
        _, ppo = train_ppo(*saving, f"critic.share={share}", name="ppo")
        for place in ("model", "checkpoints/checkpoint-2"):
            with_critic, without = ppo.path / place, grpo.path / place
            assert weights_of(with_critic).keys() == weights_of(without).keys()
            assert subfolders(without) == []
            assert subfolders(with_critic) == ([] if place == "model" else ["critic"])
        if not lora:
            policy = AutoModelForCausalLM.from_pretrained(ppo.model).state_dict()
            assert policy.keys() == AutoModelForCausalLM.from_pretrained(grpo.model).state_dict().keys()
        assert "critic_state.pt" not in {file.name for file in ppo.critic.iterdir()}

    @BOTH
    def test_a_critic_that_transformers_and_peft_load(self, watch, arrangement: list[str]) -> None:
        seen = watch(*arrangement, "critic.learning_rate=0.01")
        auto = AutoPeftModelForTokenClassification if arrangement else AutoModelForTokenClassification
        loaded = auto.from_pretrained(seen.folder.critic, num_labels=1).eval()
        torch.testing.assert_close(values_of(loaded, seen), values_of(seen.critic, seen), **MODEL_OF_TENSORS)
        assert values_of(loaded, seen).abs().max() > 0.01

    @BOTH
    def test_another_run_begins_with_it(self, watch, arrangement: list[str]) -> None:
        """`run:NAME` is that run's critic; one on the policy's body becomes a model of its own."""
        first = watch(*arrangement, "critic.learning_rate=0.01", name="first")
        wanted = values_of(first.critic, first)
        seen: list[torch.Tensor] = []
        watch(
            "critic.init=run:quickstart/first", name="second", on=lambda one: seen.append(values_of(one.critic, first))
        )
        torch.testing.assert_close(seen[0], wanted, **MODEL_OF_TENSORS)
        assert wanted.abs().max() > 0.01

    def test_a_shared_critic_that_lost_its_head_is_refused(self, watch) -> None:
        seen = watch(*SHARED)
        file = seen.folder.critic / "adapter_model.safetensors"
        base = seen.trainer.model.get_base_model().config.name_or_path
        for lost in ("score.bias", "score.weight"):
            weights = load_file(file)
            del weights[f"base_model.model.{lost}"]
            save_file(weights, file)
            with pytest.raises(ModelError, match=rf"lost its head[^$]*{lost}"):
                build_critic(str(seen.folder.critic), base, dtype="auto", dropout=0.0)

    @BOTH
    def test_a_run_that_was_stopped_goes_on_with_it(self, watch, workplace: Path, arrangement: list[str]) -> None:
        """From the middle of a round: weights of both, and the schedule, are those of the run that never stopped."""
        words = [*arrangement, "critic.learning_rate=0.01", "trainer.args.save_steps=1", "trainer.args.max_steps=4"]
        whole = watch(*words, "trainer.args.save_total_limit=null", name="whole").folder
        cut = RunFolder(whole.path.with_name("cut"))
        shutil.copytree(whole.path, cut.path)
        for folder in (cut.checkpoints / "checkpoint-4", cut.model, cut.critic):
            shutil.rmtree(folder)
        cut.status.write_text(json.dumps({**read_json(cut.status), "state": "failed"}))
        assert main(["resume", str(cut.path)]) == 0
        for place in ("model", "critic", "checkpoints/checkpoint-4/critic"):
            assert is_same(weights_of(cut.path / place), weights_of(whole.path / place)), place
        states = [torch.load(one.checkpoints / "checkpoint-4/critic/critic_state.pt") for one in (cut, whole)]
        assert states[0]["schedule"] == states[1]["schedule"]
        assert states[0]["optimizer"].keys() == {"state", "param_groups"}
        for index, moments in states[0]["optimizer"]["state"].items():
            assert is_same(moments, states[1]["optimizer"]["state"][index])

    def test_its_state_goes_on_in_another_critic(self, watch, workplace: Path) -> None:
        seen = watch("critic.learning_rate=0.01", "trainer.args.lr_scheduler_type=cosine")
        path = seen.trainer.model.config.name_or_path
        seen.critic.save_state(workplace / "state")
        other = SeparateCritic(build_critic("policy", path, dtype="auto", dropout=0.0), seen.critic.settings)
        other.prepare(seen.trainer, 3)
        assert not torch.equal(values_of(other, seen), values_of(seen.critic, seen))
        other.load_state(workplace / "state")
        assert other.learning_rate == seen.critic.learning_rate
        for critic in (other, seen.critic):
            seen.trainer.accelerator.gradient_state._set_sync_gradients(True)
            for group in critic._optimizer.param_groups:
                group["lr"] = 0.01  # the schedule is at its end
            critic.backward(
                (critic.values(seen.inputs[-1], seen.trainer.accelerator.autocast) - 1).square().mean(), is_last=True
            )
            critic.step()
        assert is_same(other.model.state_dict(), seen.critic.model.state_dict())


def weights_of(folder: Path) -> Weights:
    weights: Weights = {}
    for file in folder.glob("*.safetensors"):
        weights |= load_file(file)
    assert weights
    return weights


def subfolders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def values_of(critic: Any, seen: Watched) -> torch.Tensor:
    """(B, T): what a critic, ours or a plain model, says of the last micro-batch that was seen."""
    batch = seen.inputs[-1]
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    width = batch["completion_ids"].shape[1]
    with torch.no_grad():
        if isinstance(critic, torch.nn.Module):
            values = critic(input_ids=ids, attention_mask=mask).logits[:, -width - 1 :, 0]
        else:
            values = critic.rollout_values(ids, mask, width, len(ids), seen.trainer.accelerator.autocast)
    lengths = mask[:, -width:].sum(dim=1, keepdim=True)
    return values.where(torch.arange(width + 1) <= lengths, 0.0)


class TestEvaluation:
    EVAL = ("+data.eval.fraction=0.5", "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=1")

    @BOTH
    @pytest.mark.parametrize("size", [3, 40], ids=["small batches", "a batch larger than a round"])
    def test_evaluation_runs_beside_training(self, watch, arrangement: list[str], size: int) -> None:
        seen = watch(*arrangement, *self.EVAL, f"trainer.args.per_device_eval_batch_size={size}")
        names = ("eval_loss", "eval_reward", "eval_ppo/explained_variance", "eval_ppo/policy_loss", "eval_ppo/entropy")
        for name in names:
            assert len(logged(seen.folder, name)) == 3, name
        assert len(logged(seen.folder, "ppo/value_loss")) == 3

    def test_it_changes_nothing_but_the_random_numbers(self, watch) -> None:
        """Neither the policy, nor the critic, nor the coefficient is moved by what was evaluated."""
        seen = watch(
            *self.EVAL, "trainer.args.per_device_eval_batch_size=3", "kl.controller={target: 0.01, horizon: 5}"
        )
        trainer = seen.trainer
        before = trainer.kl, dict(seen.values[-1]), dict(seen.policy[-1])
        trainer.evaluate()
        seen.on_step_end(None, None, None)
        assert trainer.kl == before[0]
        assert is_same(seen.values[-1], before[1])
        assert is_same(seen.policy[-1], before[2])

    def test_every_row_of_the_table_has_its_advantage(self, watch) -> None:
        seen = watch("trainer.args.whiten_advantages=false")
        for step in (1, 3):
            file = seen.folder.path / "completions" / f"completions_{step:05d}.parquet"
            advantages = pyarrow.parquet.read_table(file).column("advantage").to_pylist()
            assert len(advantages) == 16
            assert all(math.isfinite(advantage) for advantage in advantages)
            assert len({round(advantage, 6) for advantage in advantages}) > 1
