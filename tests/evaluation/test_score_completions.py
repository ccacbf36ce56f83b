"""Scoring completions without a training: tokenizers, missing columns, spans, statistics, and what training gives."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

import pandas
import pyarrow.parquet as pq
import pytest
from scipy import stats

from rlhf_cli.cli import main
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.model_and_data import NOT_GIVEN
from rlhf_cli.errors import DataError, ModelError, RewardError
from rlhf_cli.evaluation import score_completions
from rlhf_cli.evaluation.score_bench import (
    QUANTILES,
    ScoreDistribution,
    correlations,
    distribution,
    labels_of,
    score_bench,
)
from rlhf_cli.evaluation.score_completions import (
    policy_tokenizer,
    read_completions,
    reads_tokens,
    score_each,
    score_with,
)
from rlhf_cli.models.byte_tokenizer import byte_tokenizer
from rlhf_cli.plan.prepare import fill_in_policy_and_data, prepare
from rlhf_cli.plan.stack_building import reward_stack
from rlhf_cli.rewards.stack.scored_rows import CompletionScores, RewardSummary, ScoredReward, ScoredRow
from rlhf_cli.rewards.stack.token_offsets import ScoredPart
from rlhf_cli.services.hub_lookup import HubQuestion

TEMPLATE = "{% for m in messages %}<{{ m.content }}>{% endfor %}"


def counted(completion_ids: Any, **columns: object) -> list[float]:
    return [float(len(ids)) for ids in completion_ids]


def letters(completions: Any, **columns: object) -> list[float]:
    return [float(len(text)) for text in completions]


def least(rewards: Any, weights: Any) -> list[float]:
    return [min(row) for row in zip(*rewards.values(), strict=True)]


COUNTED, LETTERS = {"fn": f"{__name__}:counted", "weight": 1.0}, {"fn": f"{__name__}:letters", "weight": 1.0}
MATCH = {"fn": "rlhf_cli.rewards.match:exact_match", "weight": 1.0}
ROWS: list[dict[str, Any]] = [{"prompt": "p", "completion": "abc"}, {"prompt": "q", "completion": "de"}]


def experiment(model: dict[str, object], **rewards: object) -> Experiment:
    trainer, empty = {"name": "grpo", "trl": "GRPOTrainer"}, {name: {} for name in ("launch", "track", "run")}
    given = {"seed": 0, "trainer": trainer, "data": {"world": "toy_sums"}, "model": model, "rewards": rewards}
    return Experiment.model_validate({**given, **empty})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    byte_tokenizer(64).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("key", ["path", "tokenizer"])
def test_the_policys_tokenizer_is_loaded_with_its_template(folder: Path, key: str) -> None:
    """`model.tokenizer` goes before `model.path`, which has none here."""
    model: dict[str, object] = {"path": "no/such/folder", key: str(folder), "chat_template": TEMPLATE}
    found = policy_tokenizer(experiment(model), wanted_by="test")
    assert found("1+1=")["input_ids"] == byte_tokenizer(64)("1+1=")["input_ids"]
    chat = [{"role": "user", "content": "hi"}]
    assert found.apply_chat_template(chat, tokenize=False) == "<hi>"
    tiny = {"context_tokens": 64, "hidden_size": 8, "num_layers": 1, "num_heads": 1}
    built = policy_tokenizer(experiment({"build": tiny, "chat_template": TEMPLATE}), wanted_by="test")
    assert built.apply_chat_template(chat, tokenize=False) == "<hi>"


@pytest.mark.parametrize(("key", "revision"), [("path", "r2"), ("tokenizer", None)])
def test_a_hub_is_asked_for_a_tokenizer_alone_and_loads_its_revision(
    monkeypatch: pytest.MonkeyPatch, key: str, revision: str | None
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(score_completions, "require_on_hub", lambda *given, **rules: asked.append((given, rules)))
    monkeypatch.setattr(score_completions, "load_tokenizer", lambda *given, **rules: asked.append((given, rules)))
    policy_tokenizer(experiment({"path": "org/model", "revision": "r2", key: "org/there"}), wanted_by="test")
    question, where = HubQuestion("model", "org/there", revision, needs_weights=False), f"model.{key}"
    assert asked == [
        ((question,), {"where": where, "local": f"{where}=FOLDER"}),
        (("org/there", None), {"where": where, "revision": revision, "trust_remote_code": False}),
    ]


def test_without_a_policy_or_without_its_tokenizer_the_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for model in ({"path": NOT_GIVEN}, {"path": str(tmp_path / "empty")}):
        with pytest.raises(ModelError) as caught:
            policy_tokenizer(experiment(dict(model)), wanted_by="test")
        assert caught.value.where == "model.path"


def test_which_rewards_count_tokens() -> None:
    def by_unit(completions: Any, completion_ids: Any, unit: str = "tokens") -> list[float]:
        return []

    class OfAnObject:
        def __call__(self, completions: Any, **columns: Any) -> list[float]:
            return [float(len(ids)) for ids in columns["completion_ids"]]

    def named(completions: Any) -> list[float]:
        return [float(text == "completion_ids") for text in completions]

    reading, other = (counted, by_unit, OfAnObject()), functools.partial(by_unit, unit="characters")
    assert list(map(reads_tokens, reading)) == [True] * 3
    assert list(map(reads_tokens, (named, other, letters))) == [False] * 3  # the first is given no ids


def test_without_a_policy_rewards_that_count_tokens_are_left_out_and_no_row_has_a_total() -> None:
    asked = experiment({"path": NOT_GIVEN}, letters=LETTERS, counted=COUNTED)
    (found,) = score_each(asked.model_copy(update={"aggregate": "./mine.py:reads_counted"}), [ROWS])
    assert [row.total for row in found.rows] == [None, None]
    assert ([row.rewards["letters"].raw for row in found.rows], list(found.summary)) == ([3.0, 2.0], ["letters"])
    assert "rewards.counted" in str(found.no_total)
    gated = experiment(
        {"path": NOT_GIVEN}, letters=LETTERS | {"gate": {"by": "counted", "at_least": 1}}, counted=COUNTED
    )
    with pytest.raises(ModelError, match="tokenizer"):
        score_each(gated, [ROWS])
    # Negative control: token ids in the rows need no tokenizer. The aggregate makes the totals.
    for aggregate, totals in (("sum", [7.0, 6.0]), (f"{__name__}:least", [3.0, 2.0])):
        rows = [{**row, "completion_ids": [1, 2, 3, 4]} for row in ROWS]
        (whole,) = score_each(asked.model_copy(update={"aggregate": aggregate}), [rows])
        assert ([row.total for row in whole.rows], whole.no_total) == (totals, None)


@pytest.mark.parametrize(("end", "counts"), [(None, [3.0, 2.0]), (7, [4.0, 3.0])])
def test_an_answers_tokens_are_those_of_its_text_and_its_end(
    end: int | None, counts: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in training, where an answer that has ended has an end token; not what the tokenizer puts at its start."""

    def tokenizer(texts: list[str], *, add_special_tokens: bool = True, **others: object) -> dict[str, list[list[int]]]:
        return {"input_ids": [[0] * add_special_tokens + list(text.encode()) for text in texts]}

    tokenizer.eos_token_id = end  # type: ignore[attr-defined]
    monkeypatch.setattr(score_completions, "policy_tokenizer", lambda experiment, wanted_by: tokenizer)
    (found,) = score_each(experiment({"path": "given"}, counted=COUNTED), [ROWS])
    assert [row.rewards["counted"].raw for row in found.rows] == counts


@pytest.mark.parametrize(("where", "hint"), [("--completions", "answr"), ("data", "data.rename.answer=answr")])
def test_a_column_that_a_reward_reads_and_the_rows_lack(where: str, hint: str) -> None:
    asked = experiment({"path": NOT_GIVEN}, match=MATCH)
    with contextlib.closing(reward_stack(asked, device="cpu")) as stack, pytest.raises(DataError) as caught:
        score_with(stack, asked, [{**row, "answr": "x"} for row in ROWS], where=where)
    assert (caught.value.where, caught.value.hint) == (where, hint)


def same(completions: Any, answer: Any) -> list[float]:
    return [float(text == right) for text, right in zip(completions, answer, strict=True)]


@pytest.mark.parametrize("has_it", [0, 1])
def test_a_column_that_only_some_rows_have(has_it: int) -> None:
    rows = [{**row, "answer": row["completion"]} if place == has_it else row for place, row in enumerate(ROWS)]
    (found,) = score_each(experiment({"path": NOT_GIVEN}, same={"fn": f"{__name__}:same"}), [rows])
    assert [row.rewards["same"].raw for row in found.rows] == [float(place == has_it) for place in (0, 1)]


LABELLED: list[dict[str, object]] = [
    {"prompt": "q", "completion": "ab", "ok": True},
    {"prompt": "q", "completion": "abcd", "ok": False},
    {"prompt": "r", "completion": "", "ok": None},
]


def with_summary(*totals: float | None, raw: float = 1.0, names: Sequence[str] = ("one", "two")) -> CompletionScores:
    """The first reward's raw score is the total times `raw`; the others have no scores."""
    nothing = ScoredReward(None, None, None, open=False, error=None)
    rows = []
    for total in totals:
        scored = ScoredReward(None if total is None else raw * total, total, total, open=True, error=None)
        rows.append(ScoredRow(total, dict(zip(names, [scored, nothing], strict=False))))
    summary = RewardSummary(1.0, 1.0, 1.0, open_fraction=1.0, excluded=0, errors=0, calls=3)
    return CompletionScores(rows, dict.fromkeys(names, summary))


def test_what_is_summed_up() -> None:
    """Lengths 2, 4 and 0. The good row has 1 and the bad one 3, so the only pair is in the wrong order."""
    found = score_bench(LABELLED, with_summary(1.0, 3.0, None, raw=2.0), label="ok")
    means = {name: one.mean for name, one in found.distributions.items()}
    assert means == {"one": 4.0, "two": None, "total": 2.0, "characters": 2.0}
    assert [(one.first, one.second) for one in found.correlations] == [
        *(("one", "two"), ("one", "total"), ("one", "characters"), ("one", "ok")),
        *(("two", "total"), ("two", "characters"), ("two", "ok")),
        *(("total", "characters"), ("total", "ok"), ("characters", "ok")),
    ]
    assert ([one.ranks for one in found.correlations][-3:], found.label) == (pytest.approx([1.0, -1.0, -1.0]), "ok")
    unlabelled = score_bench(LABELLED, with_summary(1.0, 3.0, 2.0))
    assert (unlabelled.label, "ok" in {one.second for one in unlabelled.correlations}) == (None, False)
    untotalled = score_bench(LABELLED, with_summary(None, None, None), label="ok")
    assert list(untotalled.distributions) == ["one", "two", "characters"]


def test_labels_and_lengths_may_have_the_name_of_a_reward() -> None:
    rows = [{**row, "characters": row["ok"]} for row in LABELLED]
    found = score_bench(rows, with_summary(1.0, 3.0, None, names=["characters"]), label="characters")
    ranks = {one.second: one.ranks for one in found.correlations if one.first == "characters"}
    assert ranks == pytest.approx({"total": 1.0, "completion.characters": 1.0, "characters (label)": -1.0})


def test_as_pandas_has_it() -> None:
    """Without the rows that have no score; of a single value there is no deviation."""
    random = Random(1)
    values = [random.choice([0.0, 1.0, None, random.gauss(0, 3)]) for _ in range(200)]
    series = pandas.Series(values, dtype=float)
    found = distribution(values)
    assert [*found.quantiles.values()] == pytest.approx(series.quantile(list(QUANTILES)).tolist(), abs=1e-12)
    assert list(found.quantiles) == ["0", "0.05", "0.25", "0.5", "0.75", "0.95", "1"]
    assert (found.count, found.mean, found.deviation) == pytest.approx((series.count(), series.mean(), series.std()))
    assert distribution([None, 2.0]) == ScoreDistribution(1, 2.0, None, dict.fromkeys(found.quantiles, 2.0))
    assert distribution([1.0, 3.0]).deviation == pytest.approx(2**0.5)
    assert distribution([None]) == distribution([]) == ScoreDistribution(0, None, None, {})


@pytest.mark.parametrize("seed", range(5))
def test_as_scipy_has_it(seed: int) -> None:
    random = Random(seed)
    a: list[float | None] = [random.choice([0.0, 0.5, 1.0, None]) for _ in range(40)]
    b: list[float | None] = [random.gauss(x or 0.0, 1.0) if random.random() > 0.2 else None for x in a]
    (found,) = correlations({"a": a, "b": b})
    both = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    first, second = zip(*both, strict=True)
    assert (found.count, found.ranks) == (len(both), pytest.approx(stats.spearmanr(first, second).statistic, abs=1e-12))


def test_of_a_constant_there_is_none() -> None:
    found = correlations({"a": [1.0, 1.0, 1.0], "b": [1.0, 2.0, 3.0], "c": [3.0, 2.0, None]})
    assert [(one.first, one.second, one.ranks) for one in found] == [
        ("a", "b", None),
        ("a", "c", None),
        ("b", "c", pytest.approx(-1.0)),
    ]


def test_labels_as_people_write_them() -> None:
    """JSON lines have the keys that were written: who labels later leaves the key out, which is an empty cell."""
    rows: list[dict[str, object]] = [{"ok": value} for value in (True, 0, "yes", " False", None, "", 1.0, "wrong")]
    assert labels_of([{"prompt": "q"}, *rows], "ok") == [None, 1.0, 0.0, 1.0, 0.0, None, None, 1.0, 0.0]
    with pytest.raises(DataError) as caught:
        labels_of([{"grade": 1}, {"grade": 3}], "grade")
    assert (caught.value.where, caught.value.got) == ("--label grade, row 2 (the first row is 1)", "3")
    assert caught.value.advice is not None
    with pytest.raises(DataError) as caught:
        labels_of([{"is_correct": 1}, {"other": 1}], "is_corect")
    assert (caught.value.where, caught.value.got) == ("--label", "columns is_correct, other")
    assert caught.value.hint == "is_correct"


def read(place: Path, *rows: dict[str, object], words: Sequence[str] = (), **given: Any) -> list[dict[str, Any]]:
    """Return rows of a file c.jsonl of the working directory as they are read for quickstart and these words."""
    (place / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = prepare(["exp=quickstart", *words], adjust=fill_in_policy_and_data).experiment
    return read_completions(Path("c.jsonl"), limit=None, experiment=asked, **given)


GOOD: dict[str, object] = {"prompt": "q", "completion": "a"}


@pytest.mark.parametrize(
    ("rows", "given", "where", "hint"),
    [
        ([GOOD, {**GOOD, "completion": None}], {}, "c.jsonl, row 2 (the first row is 1)", None),
        ([{**GOOD, "completion": ["a", "b"]}], {}, "c.jsonl, row 1 (the first row is 1)", None),
        ([{"question": "q", "completion": "a"}], {}, "c.jsonl", "data.rename.prompt=question"),
        ([{"prompt": "q", "answer": "2", "output": "2"}], {"words": ["+reward@rewards.match=exact_match"]},
         "c.jsonl", "data.rename.completion=output"),
        ([{**GOOD, "ok": True}, {**GOOD, "ok": "no"}], {"label": "ok"}, "c.jsonl:2", None),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_scored(
    rows: list[dict[str, object]], given: dict[str, Any], where: str, hint: str | None, place: Path
) -> None:
    with pytest.raises(DataError) as caught:
        read(place, *rows, **given)
    assert caught.value.where == where
    assert hint is None or caught.value.hint == hint


@pytest.mark.parametrize(
    ("row", "typed"),
    [
        ({"instruction": "1+1=", "output": "2"}, ["data.rename.prompt=instruction", "data.rename.completion=output"]),
        ({"q": "1+1", "out": {"text": "2"}}, ["data.prompt='{q}='", "data.rename.completion=out.text"]),
        ({"q": "1+1", "prompt": "1+1=", "completion": "2"}, ["data.prompt='{q}?'", "data.rename.completion=output"]),
    ],
)
def test_completions_are_read_under_the_names_of_the_experiment(
    row: dict[str, object], typed: list[str], place: Path
) -> None:
    """An unread column may hold anything."""
    found = read(place, *(row | {"meta": meta, "answer": "2"} for meta in ("x", 1)), words=typed)
    assert [(one["prompt"], one["completion"], "meta" in one) for one in found] == [("1+1=", "2", False)] * 2


def test_fields_are_those_of_the_dataclass() -> None:
    """Written out field by field for speed; `dataclasses.asdict` says what there is, and in which order."""
    parts = [ScoredPart(0, 1, "a", 0.5)]
    reward = ScoredReward(raw=0.5, effective=0.25, weighted=1.0, open=True, error=None, parts=parts)
    row = ScoredRow(1.0, {"a": reward, "b": replace(reward, parts=None)})
    expected = asdict(row)
    del expected["rewards"]["b"]["parts"], expected["rewards"]["a"]["parts"][0]["tokens"]
    assert json.dumps(row.as_json()) == json.dumps(expected)
    sums = RewardSummary(0.5, 0.25, 1.0, open_fraction=0.75, excluded=1, errors=2, calls=3)
    assert json.dumps(CompletionScores([row], {"a": sums}).as_json()) == json.dumps({"summary": {"a": asdict(sums)}})
    assert CompletionScores([row], {}, "for a reason").as_json()["no_total"] == "for a reason"


def spans(completions: Any, **columns: Any) -> list[list[tuple[int, int, float]]]:
    return [[(0, 1, 1.0), (1, len(text), -0.5)] for text in completions]


def each_token(completion_ids: Any, **columns: Any) -> list[list[float]]:
    return [[0.0, 1.0, -0.5, -0.5, 0.0] for _ in completion_ids]


def test_parts_have_their_texts(folder: Path) -> None:
    """Without token ids; with those that another reward counts; and with those of `rlhf eval`, which have special
    tokens around them, without a text.
    """
    tokenizer = byte_tokenizer(64)
    row = {"prompt": "1+2=", "completion": "abc"}
    ids = [tokenizer.eos_token_id, *tokenizer.encode("abc"), tokenizer.eos_token_id]
    of_spans = {"spans": {"fn": f"{__name__}:spans", "weight": 1.0}}
    of_tokens = {"each": {"fn": f"{__name__}:each_token", "weight": 1.0}}
    for rewards, rows, parts in (
        *((of_spans, row, [("a", 1.0), ("bc", -0.5)]), ({**of_spans, "counted": COUNTED}, row, None)),
        (of_spans, {**row, "completion_ids": ids}, None),
        (of_tokens, {**row, "completion_ids": ids}, [("", 0.0), ("a", 1.0), ("bc", -1.0), ("", 0.0)]),
    ):
        (found,) = score_each(experiment({"path": str(folder)}, **rewards), [[rows]])
        scored = found.rows[0].rewards[next(iter(rewards))]
        assert [(part.text, part.reward) for part in scored.parts] == (parts or [("a", 1.0), ("bc", -0.5)])
        assert scored.raw == sum(part.reward for part in scored.parts)


def pairs(completions: Any, **columns: Any) -> list[tuple[float, float]]:
    return [(1.0, 0.0)] * len(completions)


@pytest.mark.parametrize(
    ("completion", "has_model", "raw"), [("abc", True, None), ("a", True, 1.0), ("abc", False, 1.0)]
)
def test_values_per_token_are_as_many_as_the_policys_tokens(
    completion: str, has_model: bool, raw: float | None, folder: Path
) -> None:
    """As in a run: `a` and the end are two tokens. Without a policy nothing tells."""
    model = {"path": str(folder) if has_model else NOT_GIVEN}
    asked = experiment(model, pairs={"fn": f"{__name__}:pairs", "weight": 1.0})
    with contextlib.nullcontext() if raw else pytest.raises(RewardError):
        (found,) = score_each(asked, [[{"prompt": "q", "completion": completion}]])
        assert found.rows[0].rewards["pairs"].raw == raw


CALLED: list[tuple[str, int]] = []


def plain(completions: Any, **columns: Any) -> list[float]:
    CALLED.append(("plain", len(completions)))
    return [float(text[:4]) for text in completions]


def gated(completions: Any, **columns: Any) -> list[float]:
    CALLED.append(("gated", len(completions)))
    return [1.0 for _ in completions]


async def waits(completions: Any, **columns: Any) -> list[float]:
    CALLED.append(("waits", len(completions)))
    return [2.0 for _ in completions]


def test_a_reward_is_called_once_with_all_rows_it_is_open_for() -> None:
    CALLED.clear()
    rewards = {one: {"fn": f"{__name__}:{one}", "weight": 1.0} for one in ("plain", "gated", "waits")}
    rewards["gated"]["gate"] = {"by": "plain", "at_least": 10, "otherwise": "exclude"}
    asked = experiment({"path": NOT_GIVEN}, **rewards)
    score_each(asked, [[{"prompt": f"{row // 4}?", "completion": f"{row:04} is it"} for row in range(500)]])
    assert sorted(CALLED) == [("gated", 490), ("plain", 500), ("waits", 500)]


MINE = """
def ids(completions, **columns):
    return [len(ids) for ids in columns["completion_ids"]]

def named(completion_ids):
    return [len(ids) for ids in completion_ids]

def array(completions, **columns):
    import numpy
    return numpy.array([[len(text)] for text in completions])

def tensor(completions):
    import torch
    return torch.tensor([[float(len(text))] for text in completions])

def lists(completions):
    return [[float(len(text))] if text else None for text in completions]

def bools(completions):
    return [len(text) > 2 for text in completions]

def scalars(completions, **columns):
    import numpy
    return [numpy.float32(len(text)) if len(text) % 2 else None for text in completions]

def state(completions, trainer_state, log_metric, log_extra):
    log_metric(name="mine", value=1.0)
    log_extra(column="mine", values=list(completions))
    return [float(trainer_state.is_world_process_zero) + trainer_state.num_input_tokens_seen] * len(completions)
"""
SAME = ("array", "tensor", "lists", "bools", "scalars")
IDS = ("ids", "named")


@pytest.mark.whole
@pytest.mark.parametrize("isolate", ["false", "true"])
def test_the_same_functions_in_both(
    isolate: str, place: Path, write: Callable[[str, str], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    write("mine.py", MINE)
    names = (*SAME, *IDS, "state") if isolate == "false" else ("array", "ids", "named")
    words = ["+exp=quickstart", *(f"~rewards.{one}" for one in ("correct", "format", "brevity")), "track=none"]
    words += [f"rewards.{name}.fn=./mine.py:{name}" for name in names]
    words += [f"rewards.{name}.isolate={isolate}" for name in names]
    words += ["expect=null", "run.name=r", "trainer.args.max_steps=1", "trainer.args.per_device_train_batch_size=8"]
    assert main(["train", *words]) == 0
    (table,) = Path("runs/quickstart/r/completions").glob("*.parquet")
    trained = pq.read_table(table).to_pylist()
    capfd.readouterr()
    assert main(["score", *words, "--completions", str(table), "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)["rows"]
    for name in (one for one in names if one in SAME):
        assert [row[name] for row in trained] == [row["rewards"][name]["raw"] for row in rows]
    for name in (one for one in names if one in IDS):  # the answers are read again as text, without their last token
        assert {row[name] - again["rewards"][name]["raw"] for row, again in zip(trained, rows, strict=True)} <= {
            0.0,
            1.0,
        }
    if isolate == "false":
        assert {row["rewards"]["state"]["raw"] for row in rows} == {1.0}
