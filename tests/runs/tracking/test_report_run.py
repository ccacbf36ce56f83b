"""The report of a sweep lies beside its runs in wandb, in their group, where they are tracked by wandb."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import pytest

from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.tracking import wandb_tracker
from rlhf_cli.runs.tracking.wandb_tracker import log_report
from tests.support.logged_run import CONFIG, logged_run
from tests.support.wandb_read_back import records


def _png() -> bytes:
    """A picture of one grey point, by the PNG specification."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"\0\x80")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@pytest.fixture
def sweep(place: Path) -> Path:
    """A sweep of one job, with a report of a page and a picture."""
    folder = place / "runs" / "quickstart" / "swept"
    logged_run(folder / "seed=1")
    (folder / "sweep.json").write_text("{}")
    (folder / "report.html").write_text("<html><body>0.1 beats 0</body></html>")
    (folder / "front.png").write_bytes(_png())
    return folder


def test_page_and_picture_are_in_the_group(sweep: Path) -> None:
    pytest.importorskip("PIL", reason="pip install pillow")
    files = [sweep / "report.html", sweep / "front.png", sweep / "absent.png", sweep / "sweep.json"]
    assert log_report(sweep, files)
    (read,) = records(sweep)
    assert (read.run["display_name"], read.run["job_type"]) == ("report", "report")
    assert (read.run["run_group"], read.run["project"]) == ("quickstart/swept", "sums")
    assert read.run["run_id"] != "0123abcd"
    row = read.steps[0]
    assert {name.partition(".")[0] for name in row if not name.startswith("_")} == {"report_html", "front_png"}
    (page,) = sweep.glob("wandb/offline-run-*/files/media/html/*.html")
    assert "0.1 beats 0" in page.read_text()
    (picture,) = sweep.glob("wandb/offline-run-*/files/media/images/*.png")
    assert picture.read_bytes() == _png()


@pytest.mark.parametrize("track", [{"mode": "none"}, {"mode": "offline", "tracker": "mlflow"}])
def test_nothing_is_logged_where_wandb_does_not_track(track: dict[str, str], sweep: Path) -> None:
    RunFolder(sweep / "seed=1").config.write_text(json.dumps({**CONFIG, "track": track}))
    assert not log_report(sweep, [sweep / "report.html"])
    assert not (sweep / "wandb").exists()


def test_what_wandb_raises_is_told(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(wandb_tracker, "open_run", fail)
    said: list[str] = []
    assert not log_report(sweep, [sweep / "report.html"], say=said.append)
    assert said == [
        "warning: wandb did not take the report (OSError: [Errno 28] No space left on device); it lies in "
        "runs/quickstart/swept"
    ]
