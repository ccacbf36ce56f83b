"""What is wrong with `launch.slurm` is said before Slurm is asked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlhf_cli.config.rules.launch_rules import seconds
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError
from rlhf_cli.jobs.prepare import prepare

pytestmark = pytest.mark.usefixtures("place")
Judged = Callable[..., Experiment]
Refused = Callable[..., ConfigError]


@pytest.mark.parametrize(
    ("text", "meant"),
    [  # the six forms of sbatch's manual
        ("90", 90 * 60),
        ("1:30", 90),
        ("4:00:00", 4 * 3600),
        ("2-12", 60 * 3600),
        ("2-12:30", 60 * 3600 + 30 * 60),
        ("1-00:00:01", 86401),
        ("4h", None),
        ("", None),
        ("1:2:3:4", None),
        ("-1", None),
    ],
)
def test_times_are_read_as_sbatch_does(text: str, meant: int | None) -> None:
    assert seconds(text) == meant


def test_a_job_of_slurm_is_a_configuration(judged: Judged) -> None:
    words = ["launch=slurm", "launch.slurm.time=4:00:00", "launch.slurm.gpus_per_node=2"]
    slurm = judged("+exp=quickstart", *words, "+launch.slurm.extra.exclusive=true").launch.slurm
    assert slurm is not None
    assert (slurm.time, slurm.gpus_per_node, slurm.extra) == ("4:00:00", 2, {"exclusive": True})
    assert judged("+exp=quickstart").launch.slurm is None


@pytest.mark.parametrize(
    ("word", "key", "says"),
    [
        ("launch.slurm.time=4h", "launch.slurm.time", "launch.slurm.time=4:00:00"),
        ("launch.slurm.time=14400", "launch.slurm.time", "in quotes"),
        ("launch.slurm.time=2:00", "launch.slurm.time", "launch.grace_s=120"),
        ("launch.slurm.extra.time=1", "launch.slurm.extra.time", "launch.slurm.time"),
        ("launch.slurm.extra.gpus_per_node=1", "launch.slurm.extra.gpus_per_node", "launch.slurm.gpus_per_node"),
        ("launch.slurm.extra.signal=USR2@9", "launch.slurm.extra.signal", "launch.grace_s"),
        ("launch.slurm.extra.output=x", "launch.slurm.extra.output", "constraint"),
        ("launch.slurm.partiton=x", "launch.slurm.partiton", "launch.slurm.partition"),
        ("launch.slurm.mem_gb=0", "launch.slurm.mem_gb", "greater than 0"),
    ],
)
def test_what_is_refused(refused: Refused, word: str, key: str, says: str) -> None:
    error = refused("+exp=quickstart", "launch=slurm", word)
    assert str(error.where).startswith(key)
    assert says in str(error)


def test_several_nodes_find_one_another(refused: Refused) -> None:
    assert prepare(["+exp=quickstart", "launch=slurm", "launch.nodes=2"]).experiment.launch.nodes == 2
    error = refused("+exp=quickstart", "launch=slurm", "launch.nodes=2", "launch.rdzv=host:29500")
    assert (error.what, error.hint) == ("in a job of Slurm the machines find one another", "launch.rdzv=null")
