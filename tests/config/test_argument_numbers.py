"""Numbers among a trainer's arguments: the experiment's, TRL's own where it has none, and nothing that is no number."""

from __future__ import annotations

import pytest

from rlhf_cli.config.trl_args import TrainerFields, TrlField, real_number, whole_number, whole_number_or_none
from rlhf_cli.errors import ConfigError

FIELDS = {
    "steps": TrlField("steps", "int", 7, ()),
    "size": TrlField("size", "int | None", None, ()),
    "epochs": TrlField("epochs", "float", 1.5, ()),
}
TRAINER = TrainerFields("NoTrainer", "NoConfig", FIELDS)


def test_the_experiments_number_counts_and_trls_where_there_is_none() -> None:
    assert whole_number(TRAINER, {}, "steps") == 7
    assert whole_number(TRAINER, {"steps": 3}, "steps") == 3
    assert whole_number_or_none(TRAINER, {"steps": 3}, "steps") == 3
    assert whole_number_or_none(TRAINER, {}, "size") is None
    assert real_number(TRAINER, {}, "epochs") == 1.5
    assert real_number(TRAINER, {"epochs": 2}, "epochs") == 2.0


@pytest.mark.parametrize("value", ["3", 2.5, [3], {"steps": 3}])
def test_what_is_no_whole_number_is_refused_by_its_key(value: object) -> None:
    for read in (whole_number, whole_number_or_none):
        with pytest.raises(ConfigError, match=r"wrong value for trainer\.args\.steps") as caught:
            read(TRAINER, {"steps": value}, "steps")
        assert caught.value.got == repr(value)


def test_what_must_be_set_is_refused_where_nothing_is() -> None:
    with pytest.raises(ConfigError, match=r"wrong value for trainer\.args\.size"):
        whole_number(TRAINER, {}, "size")
    with pytest.raises(ConfigError, match=r"wrong value for trainer\.args\.epochs"):
        real_number(TRAINER, {"epochs": None}, "epochs")
    with pytest.raises(ConfigError, match=r"wrong value for trainer\.args\.epochs"):
        real_number(TRAINER, {"epochs": "two"}, "epochs")
