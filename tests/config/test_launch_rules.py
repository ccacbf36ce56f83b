"""Test the rules of `launch`, which say what works instead, and what a file of `accelerate config` fills in."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.config import accelerate_file
from rlhf_cli.config.accelerate_file import accelerate_environment
from rlhf_cli.config.rules.launch_rules import seconds
from rlhf_cli.errors import ConfigError
from rlhf_cli.launch.freeze import create_run
from rlhf_cli.plan.prepare import prepare, prepare_from
from rlhf_cli.tables.strategies import STRATEGIES
from tests.support.planning import Judged, Refused

pytestmark = pytest.mark.usefixtures("place")

ASK_FOR = {
    "critic.share=lora": ("exp=toy_ppo", "critic.share=lora", "model.lora.r=8"),
    "critic.warmup_steps": ("exp=toy_ppo", "critic.warmup_steps=2"),
    "model.quantize": ("exp=quickstart", "model=local", "model.path=a/b", "model.quantize=4bit", "model.lora.r=8"),
    "sync_ref_model": ("exp=quickstart", "trainer.args.sync_ref_model=true", "trainer.args.beta=0.1"),
    "rollout=continuous": ("exp=quickstart", "launch.rollout=continuous"),
    "offload": ("exp=quickstart", "launch.offload=true"),
    "teacher": ("trainer=distillation", "model=tiny", "data=toy_sums", "teacher.path=a/b"),
}
"""Feature -> the words of an experiment with this feature only."""

CASES = [(name, feature) for name in STRATEGIES for feature in ASK_FOR]


@pytest.mark.parametrize(("name", "feature"), CASES)
def test_a_feature_is_refused_as_the_table_says(judged: Judged, refused: Refused, name: str, feature: str) -> None:
    words = (*ASK_FOR[feature], f"launch.strategy={name}")
    conflict = STRATEGIES[name].conflicts.get(feature)  # type: ignore[call-overload]
    if conflict is None:
        judged(*words)
        return
    error = refused(*words)
    assert error.hint == conflict[1]
    assert conflict[0] in str(error.expected)


SERVER = ("launch.rollout=vllm_server", "launch.rollout_gpus=1")


@pytest.mark.parametrize(
    ("words", "where", "hint"),
    [
        # a trainer that does not generate
        (("exp=toy_dpo", "launch.rollout=vllm"), "launch.rollout", "launch.rollout=hf"),
        (("exp=toy_dpo", "launch.rollout_gpus=1"), "launch.rollout_gpus", "launch.rollout_gpus=0"),
        (("exp=toy_dpo", "launch.vllm.args.max_num_seqs=4"), "launch.vllm.args", "'~launch.vllm.args'"),
        (("exp=toy_dpo", "sampling.keep_groups.by=correct"), "sampling.keep_groups", "sampling.keep_groups=null"),
        # no server, settings of none, one on two nodes, two
        (("launch.rollout=vllm_server",), "launch.rollout", None),
        (("launch.rollout_gpus=1",), "launch.rollout_gpus", None),
        (("launch.vllm.args.max_num_seqs=4",), "launch.vllm.args", None),
        ((*SERVER, "launch.nodes=2"), "launch.rollout_gpus", None),
        ((*SERVER, "trainer.args.vllm_server_base_url=http://host:8000"), "trainer.args.vllm_server_base_url", None),
    ],
)
def test_where_completions_cannot_be_generated(refused: Refused, words: tuple[str, ...], where: str, hint: Any) -> None:
    error = refused("exp=quickstart", *words) if "=toy_" not in words[0] else refused(*words)
    assert str(error.where).startswith(where)
    assert hint is None or error.hint == hint


def test_a_server_of_the_runs_own(refused: Refused, judged: Judged) -> None:
    assert judged("exp=quickstart", *SERVER).launch.rollout_gpus == 1
    for name, key in (
        ("dtype", "launch.precision"),
        ("max_model_len", "trainer.args.vllm_max_model_length"),
        ("tensor_parallel_size", "launch.rollout_gpus"),
        ("no_trust_remote_code", "model.trust_remote_code"),
        ("logprobs_mode", "TRL's client"),
    ):
        error = refused("exp=quickstart", *SERVER, f"+launch.vllm.args.{name}=1")
        assert (error.where, key in str(error.expected)) == (f"launch.vllm.args.{name} (command line)", True)


def test_times_are_read_as_sbatch_does() -> None:
    """The six forms of sbatch's manual."""
    minutes_30, days = 30 * 60, 60 * 3600
    forms = {"90": 90 * 60, "1:30": 90, "4:00:00": 4 * 3600, "2-12": days, "2-12:30": days + minutes_30}
    forms["2-12:30:15"] = days + minutes_30 + 15
    assert {text: seconds(text) for text in (*forms, "4h", "", "-1")} == {**forms, **dict.fromkeys(("4h", "", "-1"))}


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("time", "4h", "launch.slurm.time=4:00:00"),
        ("time", "14400", "in quotes"),
        ("time", "2:00", "launch.grace_s=120"),
        ("extra.time", "1", "constraint"),
        ("partiton", "x", "launch.slurm.partition"),
    ],
)
def test_slurm_settings_that_are_refused(refused: Refused, key: str, value: str, says: str) -> None:
    """In a file, YAML reads 4:00:00 as 14400, which sbatch would take for minutes: it is not suggested."""
    error = refused("+exp=quickstart", "launch=slurm", f"launch.slurm.{key}={value}")
    assert (str(error.where).partition(" ")[0], says in str(error)) == (f"launch.slurm.{key}", True)
    assert value != "14400" or error.hint is None


_SPEC = importlib.util.find_spec("trl")
assert _SPEC is not None
assert _SPEC.origin is not None
SHIPPED = Path(_SPEC.origin).parent / "accelerate_configs"
"""TRL's own files, as its documentation has them typed after `accelerate launch --config_file`."""

FSDP2 = "distributed_type: FSDP\nnum_processes: 2\nmixed_precision: bf16\nfsdp_config:\n"
FSDP2 += "  fsdp_version: 2\n  fsdp_state_dict_type: FULL_STATE_DICT\n"


def word(file: Path) -> str:
    return f"launch.accelerate_config={file}"


@pytest.fixture
def file(place: Path) -> Callable[[str], str]:
    """`file(text)`: the word that names a file of accelerate's with this text."""

    def call(text: str) -> str:
        (place / "accelerate.yaml").write_text(text)
        return word(place / "accelerate.yaml")

    return call


@pytest.mark.parametrize("name", ["multi_gpu", "single_gpu", "fsdp2", "zero1", "zero2", "zero3"])
def test_the_files_that_trl_ships(judged: Judged, name: str) -> None:
    launch = judged("exp=quickstart", word(SHIPPED / f"{name}.yaml")).launch
    found = (launch.strategy, launch.processes, launch.precision, launch.nodes, launch.offload)
    assert found == (name if "gpu" not in name else "ddp", 1 if name == "single_gpu" else 8, "bf16", 1, False)


def test_what_contradicts_is_refused_and_where_it_was_said(refused: Refused, judged: Judged, file) -> None:
    words = ("exp=quickstart", file(FSDP2))
    error = refused(*words, "launch.strategy=ddp")
    assert error.where == "launch.strategy (command line)"
    assert error.got == "launch.strategy=ddp, and the file says fsdp2"
    assert error.hint == "launch.strategy=fsdp2, or launch.accelerate_config=null"
    assert refused(*words, "launch.offload=true").where == "launch.offload (command line)"
    same = ("launch.strategy=fsdp2", "launch.processes=2", "launch.precision=bf16", "launch.device=cuda")
    assert judged(*words, *same).launch.processes == 2


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("distributed_type: MEGATRON_LM\n", "distributed_type: MEGATRON_LM"),
        ("distributed_type: MULTI_GPU\nmixed_precision: fp8\n", "mixed_precision: fp8"),
        (FSDP2.replace("  fsdp_version: 2\n", ""), "fsdp_version: 1"),  # accelerate's default
        (FSDP2.replace("FULL", "SHARDED"), "fsdp_state_dict_type: SHARDED"),
        (FSDP2 + "machine_rank: 1\nnum_machines: 2\n", "machine_rank: 1"),
        ("distributed_type: MULTI_GPU\nnum_processes: 7\nnum_machines: 2\n", "num_processes: 7"),
        ("seed: 3\n", "no distributed_type"),
        ("a: [\n", "expected node content"),
    ],
)
def test_what_a_run_cannot_do(refused: Refused, file, text: str, got: str) -> None:
    error = refused("exp=quickstart", file(text))
    assert (got in str(error.got), str(error.where)[:39]) == (True, "launch.accelerate_config (command line)")


def test_a_frozen_run_does_not_need_the_file(file, place: Path) -> None:
    """`rlhf eval` reads a run on another machine; its configuration holds what the file printed."""
    file(FSDP2)
    prepared = prepare(["exp=quickstart", word(Path("accelerate.yaml")), "run.name=one"])
    folder = create_run(prepared.experiment, prepared.composed, files={})
    (place / "accelerate.yaml").unlink()
    launch = prepare_from(folder, []).experiment.launch
    assert (launch.strategy, launch.accelerate_config) == ("fsdp2", str(place / "accelerate.yaml"))


@pytest.mark.slow
def test_the_environment_is_accelerate_s_own(place: Path) -> None:
    """`accelerate launch --config_file` itself is the yardstick: what a program that it starts finds."""
    file = place / "mine.yaml"
    file.write_text((SHIPPED / "fsdp2.yaml").read_text().replace("num_processes: 8", "num_processes: 1"))
    (place / "program.py").write_text("import json, os; print(json.dumps(dict(os.environ)))")
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(file)]
    done = subprocess.run([*launcher, "program.py"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])

    def of_accelerate(variables: dict[str, str]) -> dict[str, str]:
        return {name: value for name, value in variables.items() if name.startswith(("ACCELERATE", "FSDP", "PARALLEL"))}

    variables = accelerate_environment(file, where="here")
    assert of_accelerate(variables) == of_accelerate(found)
    assert (variables["ACCELERATE_USE_FSDP"], variables["FSDP_VERSION"]) == ("true", "2")
    assert not {"RANK", "MASTER_PORT", "PYTHONPATH", "HOME"} & set(variables)


def test_an_accelerate_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setattr(accelerate_file, "_TIMEOUT_S", 0.01)
    with pytest.raises(ConfigError, match="does not answer"):
        accelerate_environment(place / "a.yaml", where="here")
