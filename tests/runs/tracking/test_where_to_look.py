"""What the end of a run says to type next, for each tracker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.runs.tracking.tracked_run import where_to_look
from tests.runs.tracking.tracked_runs import CONFIG, logged_run


@pytest.mark.parametrize(
    ("track", "command"),
    [
        ({"tracker": "tensorboard"}, "tensorboard --logdir runs/quickstart"),
        ({"tracker": "trackio", "project": "my sums"}, "trackio show --project 'my sums'"),
        ({"tracker": "mlflow"}, "mlflow ui --backend-store-uri sqlite:///{place}/mlflow.db"),
        ({"tracker": "tensorboard", "mode": "none"}, None),
        ({"tracker": "wandb"}, None),
    ],
)
def test_the_command(track: dict[str, str], command: str | None, place: Path) -> None:
    """A run that wandb has not recorded, or that was sent, has nothing to send."""
    folder = logged_run(
        place / "runs" / "quickstart" / "one",
        config={**CONFIG, "track": {"mode": "offline", "project": "sums", **track}},
        provenance={"cwd": str(place)},
    )
    expected = [] if command is None else [command.format(place=place)]
    assert list(where_to_look(folder)) == expected


def test_a_record_is_to_be_sent_until_it_was(place: Path) -> None:
    folder = logged_run(place / "runs" / "quickstart" / "one")
    file = folder.path / "wandb" / "offline-run-20261122_101500-0123abcd" / "run-0123abcd.wandb"
    file.parent.mkdir(parents=True)
    file.touch()
    assert list(where_to_look(folder)) == ["rlhf sync runs/quickstart/one"]
    file.with_name(file.name + ".synced").touch()
    assert where_to_look(folder) == {}
    folder.config.write_text(json.dumps({**CONFIG, "track": {"mode": "none"}}))
    file.with_name(file.name + ".synced").unlink()
    assert where_to_look(folder) == {}
