"""`rlhf verify`, `rlhf report` and `rlhf export`: exit codes, where they write, what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.provenance import sha256
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.text.json_values import JsonValue
from tests.display.page.reported_runs import write_reported
from tests.project.finished_runs import finished_run, random_model
from tests.support.logged_runs import configured, write_run

Said = pytest.CaptureFixture[str]
MET: JsonValue = [{"metric": "correct", "at_least": 0.5}]
MISSED: JsonValue = [{"metric": "correct", "at_least": 0.5}, {"metric": "correct", "at": 3, "at_least": 0.9}]


@pytest.fixture
def expecting(place: Path) -> Callable[..., None]:
    """`expecting(one=[...], two=None)` writes finished runs whose reward `correct` is 0.75 at all 20 steps."""

    def write(**expected: JsonValue) -> None:
        for name, expect in expected.items():
            curves = {"rewards/correct/mean": [0.75] * 20}
            write_run(place / "runs" / "sweep" / name, configured(expect=expect), curves)

    return write


def test_a_missed_expectation(expecting, capsys: Said) -> None:
    expecting(one=MISSED)
    assert main(["verify", "runs/sweep/one", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    (run,) = said["runs"]
    states = (said["state"], run["run_state"], run["state"])
    assert (run["run"], states) == ("runs/sweep/one", ("missed", "finished", "missed"))
    met, missed = run["expectations"]
    assert met["state"] == "met"
    assert missed == {
        **{"name": "1", "metric": "rewards/correct/mean", "at": 3, "at_least": 0.9, "at_most": None},
        **{"state": "missed", "value": 0.75, "why": None},
    }


def test_a_sweep_is_verified(expecting, capsys: Said) -> None:
    expecting(one=MET, two=MISSED, three=None)
    assert main(["verify", "runs/sweep"]) == 1
    said = capsys.readouterr().out
    assert "runs/sweep/three: " in said
    assert "3 runs: 1 met, 1 missed, 1 " in said
    assert main(["verify", "runs/sweep/one", "runs/sweep/three", "runs/sweep/one"]) == 0
    capsys.readouterr()
    assert main(["verify", "runs/sweep/three"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "the run has no expectations" in err
    assert "expect: [{metric: reward, at: end, at_least: 0.5}]" in err


@pytest.mark.parametrize("words", [["runs/sweep"], ["runs/sweep/one", "nowhere"]])
def test_readable_runs_are_verified_and_the_others_named(expecting, words: list[str], capsys: Said) -> None:
    expecting(one=MET, two=MET)
    Path("runs/sweep/two/metrics.jsonl").write_text("{}\nnot JSON\n{}\n")
    assert main(["verify", *words, "--json"]) == 2
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert ([run["run"] for run in said["runs"]], said["state"]) == (["runs/sweep/one"], "met")
    (left_out,) = said["left_out"]
    assert left_out in err


def test_a_configuration_that_was_edited_is_named(expecting, capsys: Said) -> None:
    expecting(one=MET, two=MET)
    note = "config.yaml was changed after the run began"
    for name in ("one", "two"):
        folder = RunFolder(Path("runs/sweep", name))
        noted = read_json(folder.provenance)
        folder.provenance.write_text(json.dumps({**noted, "sha256": {"config": sha256(folder.config)}}))
    for is_edited in (False, True):
        for verb in ("compare", "why", "verify", "status"):
            for path in ("runs/sweep", "runs/sweep/two"):
                main([verb, path])
                said = "".join(capsys.readouterr())
                assert (note in said) is is_edited
                assert not is_edited or "runs/sweep/two" in said
                main([verb, path, "--json"])
                noted = f'"config_edited": {str(is_edited).lower()}' if verb != "compare" else note
                assert (noted in capsys.readouterr().out) is (is_edited or verb != "compare")
        with Path("runs/sweep/two/config.yaml").open("a") as config:
            config.write("# mine\n")


@pytest.fixture
def sweep(place: Path) -> Path:
    write_reported(place / "runs" / "demo" / "sweep")
    return place / "runs" / "demo" / "sweep"


def test_the_report_is_in_the_named_folder(sweep: Path, capsys: Said) -> None:
    assert main(["report", "runs/demo/sweep", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["path"], said["runs"], said["settings"]) == ("runs/demo/sweep/report.html", 5, 2)
    assert said["num_bytes"] == (sweep / "report.html").stat().st_size < 2_500_000
    assert main(["report", "runs/demo/sweep/weight=0,seed=1", "runs/demo/sweep/weight=0,seed=0"]) == 0
    assert capsys.readouterr().out.startswith("runs/demo/sweep/report.html  (")
    assert main(["report", "runs/demo/sweep/*seed=0", "--out", "elsewhere/page.html"]) == 0
    assert "2 runs, 2 settings" in capsys.readouterr().out
    assert Path("elsewhere/page.html").is_file()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "nowhere is not a run folder"),
        (["runs/demo/sweep", "--out", "runs"], "the report is a file"),
        (["runs/demo/sweep", "--yes"], "has no option --yes"),
        (["runs/demo/sweep", "--out", "runs/demo/sweep/sweep.json/x.html"], "--out FILE.html"),
    ],
)
def test_refusals_of_report(words: list[str], says: str, sweep: Path, capsys: Said) -> None:
    (sweep / "sweep.json").write_text("{}")
    assert main(["report", *words]) == 2
    assert says in capsys.readouterr().err


@pytest.fixture
def run(place: Path) -> RunFolder:
    return finished_run(place / "runs" / "mine" / "one", random_model("CAUSAL_LM"))


def test_export_into_a_folder_with_a_blank_or_into_the_run(run: RunFolder, capsys: Said) -> None:
    """Nothing is overwritten."""
    assert main(["export", "run:mine", "--out", "my model", "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert set(found) == {"folder", "kind", "step", "merged", "files", "weights_sha256", "notes"}
    assert (found["folder"], found["kind"], found["step"]) == ("my model", "policy", 3)
    assert {"README.md", "config.json", "model.safetensors", "training_config.yaml"} <= set(found["files"])
    assert "copying the weights" in err
    assert main(["export", "runs/mine/one"]) == 0
    assert (run.path / "export" / "config.json").is_file()
    assert "  hf upload OWNER/NAME runs/mine/one/export --private  #" in capsys.readouterr().out
    assert main(["export", "runs/mine/one"]) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["runs/mine/one", "runs/mine/two"], "one run at a time"),
        (["nowhere"], "is not a run folder"),
        (["run:nothing"], "no run of 'nothing' has finished"),
        (["runs/mine/one", "--checkpoint", "x"], "--checkpoint is a whole number"),
        (["runs/mine/one", "--checkpoint", "2"], "there is no checkpoint of step 2"),
        (["runs/mine/one", "--oout", "x"], "--out"),
        (["runs/mine/one", "--out", "runs/mine/one/config.yaml/x"], "the model cannot be written"),
    ],
)
def test_refusals_of_export(words: list[str], said: str, run: RunFolder, capsys: Said) -> None:
    assert main(["export", *words]) == 2
    assert said in capsys.readouterr().err
    assert not (run.path / "export").exists()
