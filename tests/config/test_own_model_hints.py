"""What is answered to somebody who names a model or data where a group's choice belongs, or a path beside a build.

Every hint is typed in its turn: what it changes is refused no more, or for what the machine lacks alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

import pytest

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError

pytestmark = pytest.mark.usefixtures("place")
Refused = Callable[..., ConfigError]
Judged = Callable[..., Experiment]


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("model.path=Some/Model-0.5B", "model=local model.path=Some/Model-0.5B"),
        ("model=Some/Model-0.5B", "model=local model.path=Some/Model-0.5B"),
        ("model=run:quickstart", "model=local model.path=run:quickstart"),
        ("model=tny", "model=tiny"),
        ("model=zzzzzzzz", "rlhf list model"),
        ("data=some/rows.jsonl", "data=file data.path=some/rows.jsonl"),
    ],
)
def test_what_to_type_instead(refused: Refused, typed: str, hint: str) -> None:
    assert refused("exp=quickstart", typed).hint == hint


def test_the_hint_holds(judged: Judged, refused: Refused) -> None:
    hint = str(refused("exp=quickstart", "model.path=Some/Model-0.5B").hint)
    model = judged("exp=quickstart", *shlex.split(hint)).model
    assert (model.path, model.build) == ("Some/Model-0.5B", None)
