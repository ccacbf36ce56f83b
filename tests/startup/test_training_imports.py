"""What a training worker imports, counted: nothing that the run has no use for, and nothing twice.

One process trains twice, as the jobs of a sweep do after one import: plainly, then with an adapter and a reward that
uses wandb of its own accord.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.small_runs import SMALL

UNUSED = (
    *("wandb", "weave", "trackio", "mlflow", "tensorboard", "comet_ml"),  # track=none
    *("peft", "bitsandbytes"),  # no adapter, nothing quantised
    *("vllm", "deepspeed", "ray"),  # one process, transformers' own generation
    *("scipy.optimize", "scipy.stats", "sklearn"),  # a loss of object detection, statistics
    *("matplotlib", "plotly", "IPython"),  # pictures are made of a finished run
    *("openai", "optuna", "sqlalchemy", "submitit", "playwright"),  # a judge, a search, Slurm, a browser
)

PROGRAM = """
import importlib.metadata, json, sys
from pathlib import Path
from rlhf_cli.cli import main

words, unused = json.loads(sys.argv[1]), json.loads(sys.argv[2])
assert main(["train", *words, "run.name=plain"]) == 0
said = {"unused": [name for name in unused if name in sys.modules], "torch": "torch" in sys.modules}

from transformers.utils import import_utils
import transformers
from trl.trainer import base_trainer, grpo_trainer
models = Path(transformers.__file__).parent / "models"
trl_imports = sys.modules["trl.import_utils"]
mapping = trl_imports.PACKAGE_DISTRIBUTION_MAPPING
said["all distributions were read"] = mapping._found is not None

from rlhf_cli.startup.read_once import without_prefix
define = import_utils.define_import_structure
before = define.cache_info().misses
whole = define(models, prefix="models")
own = define(str(models / "__init__.py"))
said["read by transformers for"] = 2 - (define.cache_info().misses - before)  # of itself and of `models`
said["same models"] = without_prefix(whole) == own and sum(map(len, own.values())) > 1000

every = importlib.metadata.packages_distributions()
def answers():
    return {name: trl_imports._is_package_available(name, return_version=True)
            for name in ("transformers", "trl", "peft", "yaml", "PIL", "huggingface_hub", "rlhf_cli", "torch")}
first = answers()
trl_imports.PACKAGE_DISTRIBUTION_MAPPING = every
said["same versions"] = first == answers() and len(first) == 8

said["no run of wandb's"] = grpo_trainer.wandb.run is None and "wandb" not in sys.modules
assert main(["train", *words, "model.lora.r=2", "rewards.logs.fn=./logs.py:logs", "rewards.logs.weight=1",
             "run.name=adapted"]) == 0
said["used by the second run"] = [name for name in unused if name in sys.modules]
import peft, wandb
said["wandb is the reward's"] = wandb is sys.modules["logs_wandb"]
wandb.run = "one that a reward began"
said["TRL sees it"] = [module.wandb.run for module in (base_trainer, grpo_trainer)]
names = [(name, one) for name, one in vars(grpo_trainer).items() if type(one).__name__ == "Later"]
said["taken from PEFT"] = {name: getattr(peft, name, None) is one._later_real() for name, one in names}
said["adapter saved"] = Path("runs/quickstart/adapted/model/adapter_config.json").is_file()
print("SAID", json.dumps(said))
"""

REWARD = """
import sys
def logs(completions, **columns):
    import wandb
    sys.modules["logs_wandb"] = wandb
    assert wandb.Table is not None and wandb.run is None
    return [0.0] * len(completions)
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What the process found."""
    place = tmp_path_factory.mktemp("worker")
    (place / "logs.py").write_text(REWARD)
    words = [*SMALL, "trainer.args.max_steps=1"]
    command = [sys.executable, "-c", PROGRAM, json.dumps(words), json.dumps(UNUSED)]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("SAID "))
    found: dict[str, object] = json.loads(line.removeprefix("SAID "))
    assert found["torch"]
    return found


def test_nothing_is_imported_that_the_run_has_no_use_for(said: dict[str, object]) -> None:
    assert said["unused"] == []


def test_what_is_installed_is_read_once_at_most(said: dict[str, object]) -> None:
    assert said["read by transformers for"] == 1
    assert said["all distributions were read"] is False


def test_what_is_not_read_would_have_said_the_same(said: dict[str, object]) -> None:
    assert said["same models"]
    assert said["same versions"]


def test_a_reward_has_wandb_and_trl_sees_the_run_it_begins(said: dict[str, object]) -> None:
    assert said["no run of wandb's"]
    assert said["wandb is the reward's"]
    assert said["TRL sees it"] == ["one that a reward began"] * 2


def test_an_adapter_is_trained_although_peft_waited(said: dict[str, object]) -> None:
    taken = said["taken from PEFT"]
    assert isinstance(taken, dict)
    assert {"PeftModel", "LoraConfig", "get_peft_model"} <= set(taken)
    assert all(taken[name] for name in taken if name != "BaseTunerLayer")
    assert said["adapter saved"]


def test_negative_control_what_is_used_is_counted(said: dict[str, object]) -> None:
    used = said["used by the second run"]
    assert isinstance(used, list)
    assert {"wandb", "peft"} <= set(used)
