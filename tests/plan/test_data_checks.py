"""How many rows a run has as far as its files tell, with which columns and values, and which files are refused."""

from __future__ import annotations

import json
from ast import literal_eval

import pytest

from rlhf_cli.plan.checks.data_checks import column_problems, row_problems, source_problems
from rlhf_cli.plan.checks.facts import DataFacts, Report, RewardFacts
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.trainers.assemble.trainer import training_rows
from tests.support.planning import ROWS, Refused, Write, planned, subject_of, table, told, unsaid


@pytest.fixture(autouse=True)
def stored(write: Write) -> None:
    """Twenty rows with the columns prompt, a and b; ten twice; two of one prompt with the column x; three held out."""
    write("rows.jsonl", ROWS)
    write("twice.jsonl", "".join(ROWS.splitlines(keepends=True)[:10]) * 2)
    write("two.jsonl", '{"x": 1, "prompt": "1+2=", "a": 1, "b": 1}\n' * 2)
    write("text.jsonl", '{"x": 1, "prompt": "1+2=", "a": "one", "b": 1}\n' * 2)
    write("held.jsonl", '{"prompt": "1+2=", "a": 1, "b": 1}\n' * 3)


# what is typed; the rows that are trained on and held out, the files by their keys, and the columns. Of ten prompts
# that stand there twice each, a quarter is 2.5 prompts, and a prompt is not divided: 3 prompts, 6 rows
COUNTED = """
path=rows.jsonl                             | 20   | None | {'': 'rows'}                        | prompt a b
path=rows.jsonl select=5                    | 5    | None | {'': 'rows'}                        | prompt a b
path=rows.jsonl select=[4,20]               | 16   | None | {'': 'rows'}                        | prompt a b
path=rows.jsonl split='train[:50%]'         | None | None | {'': 'rows'}                        | prompt a b
path=rows.jsonl keep={column:a,between:[0,4]} | 5  | None | {'': 'rows'}                        | prompt a b
path=rows.jsonl HELD                        | 20   | 3    | {'': 'rows', '.eval': 'held'}       | prompt a b
path=rows.jsonl HELD eval.select=2          | 20   | 2    | {'': 'rows', '.eval': 'held'}       | prompt a b
path=rows.jsonl eval.fraction=0.2           | 16   | 4    | {'': 'rows'}                        | prompt a b
path=twice.jsonl eval.fraction=0.25         | 14   | 6    | {'': 'twice'}                       | prompt a b
path=rows.jsonl SETS                        | 16   | 7    | {'': 'rows', '.eval.e': 'held'}     | prompt a b
path=rows.jsonl eval={e:{path:held.jsonl},f:{path:a/b}} | 20 | None | {'': 'rows', '.eval.e': 'held'} | prompt a b
path=[rows.jsonl,two.jsonl]                 | 22   | None | {'': 'rows', '[1]': 'two'}          | prompt a b x
mix={m:{path:rows.jsonl},n:{path:two.jsonl}} | None | None | {'.mix.m': 'rows', '.mix.n': 'two'} | prompt a b
mix={m:{path:rows.jsonl},n:{path:a/b}}      | None | None | {'.mix.m': 'rows'}                  |
path=a/b eval.fraction=0.2                  | None | None | {}                                  |
"""
_SHORT = {"SETS": "eval={e:{path:held.jsonl},f:{fraction:0.2}}", "HELD": "eval.path=held.jsonl"}


@pytest.mark.parametrize(("words", "rows", "held_out", "files", "columns"), table(COUNTED, **_SHORT))
def test_rows_are_counted_where_files_tell(words: str, rows: str, held_out: str, files: str, columns: str) -> None:
    subject = subject_of("exp=quickstart", "data=file", "data.path=null", *(f"data.{word}" for word in words.split()))
    data = Report().run(source_problems(subject), DataFacts())
    assert (data.num_rows, data.num_held_out) == (literal_eval(rows), literal_eval(held_out))
    named = {f"data{key}": f"{name}.jsonl" for key, name in literal_eval(files).items()}
    assert {key: file.name for key, file in data.files.items()} == named
    assert (list(data.columns), " + " in data.described) == (columns.split(), words.startswith("mix"))


def test_where_only_the_first_rows_are_looked_at_the_share_that_is_held_out_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rlhf_cli.plan.checks.data_checks._LOOKED_AT", 10)
    typed = ("exp=quickstart", "data=file", "data.path=rows.jsonl")
    for words, rows in (((), 20), (("data.eval.fraction=0.2",), None)):
        data = Report().run(source_problems(subject_of(*typed, *words)), DataFacts())
        assert (data.num_rows, data.num_held_out) == (rows, None)


def test_a_world_is_looked_at_as_the_run_will_make_it() -> None:
    seeds = [
        Report().run(source_problems(subject_of("exp=quickstart", f"seed={seed}")), DataFacts()) for seed in (3, 4, 3)
    ]
    first = [data.sources[0].rows and data.sources[0].rows[0] for data in seeds]
    assert (first[0] == first[2], first[0] == first[1]) == (True, False)


@pytest.mark.parametrize("words", ["reward reward_model.on_bad_pair=drop", "reward max_length=9", "dpo max_length=6"])
def test_rows_that_the_trainer_drops_are_not_planned(words: str, write: Write) -> None:
    """Two of six pairs have equal answers, or a long prompt: the other four are two steps of two."""
    trainer, typed = words.split()
    rows = [{"prompt": prompt, "chosen": "2", "rejected": "3"} for prompt in ("1+1=", "2+0=", "1 + 1 + 0 = ")]
    rows[2] |= {"rejected": "2"} if "bad_pair" in words else {}
    write("pairs.jsonl", "".join(json.dumps(row) + "\n" for row in rows) * 2)
    typed = typed if "." in typed else f"trainer.args.{typed}"
    sizes = ("trainer.args.num_train_epochs=1", "trainer.args.per_device_train_batch_size=2")
    files = ("data=file", "data.path=pairs.jsonl", "data.eval.path=pairs.jsonl")
    plan = planned(f"trainer={trainer}", "model=tiny", "launch=cpu", *files, *sizes, typed)
    assert (plan.num_rows, plan.num_held_out, plan.stage and plan.stage.steps) == (4, 4, 2)
    assert len([notice for notice in plan.notices if "2 of 6" in notice.text]) == 2


@pytest.mark.parametrize("long", [False, True])
def test_a_held_out_share_loses_its_own_rows_and_a_row_goes_once(long: bool, write: Write) -> None:
    """Every third of twenty pairs has equal answers, and maybe a long prompt as well: 13 are left."""
    rows = [{"prompt": f"{number}+1=", "chosen": "2", "rejected": "23"[number % 3 > 0]} for number in range(20)]
    rows = [row | {"prompt": "9" * 60} if long and row["rejected"] == "2" else row for row in rows]
    write("pairs.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    words = ("trainer=reward", "model=tiny", "data=file", "data.path=pairs.jsonl", "reward_model.on_bad_pair=drop")
    words = (*words, "trainer.args.max_length=40", "data.eval.fraction=0.3")
    plan, (kept, held, _) = planned(*words), training_rows(prepare(list(words)).experiment)
    assert (plan.num_rows, plan.num_held_out) == (len(kept), len(held[""]))
    assert len(kept) + len(held[""]) == 13


@pytest.mark.parametrize("trainer", ["dpo", "orpo", "cpo"])
def test_pairs_of_equal_answers_give_a_notice(trainer: str, write: Write) -> None:
    """A reward model refuses them."""
    rows = [{"prompt": "1+1=", "chosen": "2", "rejected": other} for other in ("2", "3", "2", "4")]
    answers_alone = [{name: f"1 + 1 = {row[name]}" for name in ("chosen", "rejected")} for row in rows]
    for counted, left in ((["8 of 16"], rows), (["8 of 16"], answers_alone), ([], rows[1::2])):
        write("pairs.jsonl", "".join(json.dumps(row) + "\n" for row in left) * 4)
        subject = subject_of(f"trainer={trainer}", "model=tiny", "data=file", "data.path=pairs.jsonl")
        data = Report().run(source_problems(subject), DataFacts())
        texts = [text for _, text in told(row_problems(subject, data))]
        assert [text.partition(" pairs")[0] for text in texts] == counted


# what is typed; what the errors say: the key, what was got and expected, what to type or do
REFUSED = """
path=rows.jsonl select=[1,21]        | data.select  [1, 21]  at most 20 / '~data.select'
path=rows.jsonl eval.fraction=0.01   | data.eval  20 rows, 20 prompts / another fraction
path=gone.jsonl eval.path=gone.jsonl | data.path / gone.jsonl / a file
path=gone.jsonl eval.path=held.jsonl | data.path / gone.jsonl / a file
mix={m:{path:rows.jsonl},n:{path:text.jsonl}} | data.mix.n  text  integer, as in data.mix.m / rename.other_a=a
"""


@pytest.mark.parametrize(("words", "parts"), table(REFUSED))
def test_what_cannot_be_read_is_refused_once(words: str, parts: str) -> None:
    subject = subject_of("exp=quickstart", "data=file", "data.path=null", *(f"data.{word}" for word in words.split()))
    report = Report()
    data = report.run(source_problems(subject), None)
    assert unsaid(told(source_problems(subject)), parts) == []
    assert data is not None
    assert (data.num_rows, bool(data.held_out)) == (None, "held" in words)
    (error,) = report.problems.values()
    assert str(error.where).endswith("(command line)") == (parts.split()[0] in ("data.select", "data.path"))


def test_a_column_that_held_out_rows_lack_is_looked_for_in_these(write: Write) -> None:
    """They need no column of the training: a dialogue stands in for the prompt."""
    talk = [{"role": "user", "content": "1+2="}, {"role": "assistant", "content": "3"}]
    write("chat.jsonl", (json.dumps({"messages": talk}) + "\n") * 3)
    subject = subject_of("exp=quickstart", "data=file", "data.path=rows.jsonl", "data.eval.path=chat.jsonl")
    data = Report().run(source_problems(subject), DataFacts())
    (error,) = column_problems(subject, data, RewardFacts())
    assert (error.got, error.hint) == ("columns messages", "data.transcripts=true")
    assert [*row_problems(subject, data)] == [], "the notice comes once"


OWN = "exp=quickstart ~rewards.correct ~rewards.format ~rewards.brevity expect=null data=file data.path=own.jsonl"


def own_rows(write: Write, **columns: list[object]) -> None:
    """Eight rows with these columns, whose values are repeated."""
    rows = [{"prompt": f"{row}?"} | {name: of[row % len(of)] for name, of in columns.items()} for row in range(8)]
    write("own.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(
    ("values", "row"),
    [
        (["assert f()", "def check(candidate): assert candidate(1) == 1"], 2),
        (["assert f()", None, '[{"input": "1", "output": "2"}]'], 3),
        ([[{"input": "1", "output": "2"}]], 1),  # open-r1's
    ],
)
def test_tests_that_the_reward_refuses_are_refused_before_the_run(
    values: list[object], row: int, write: Write, refused: Refused
) -> None:
    own_rows(write, test=values)
    error = refused(*OWN.split(), "reward@rewards.x=code_passes_tests", "data.rename.tests=test")
    assert f"data, column tests, row {row} " in str(error.where)
    assert (str(error.where).endswith("own.jsonl"), error.advice is None) == (True, False)


# the reward; the values of its column; what the notices say
NOTED: list[tuple[str, list[object], list[str]]] = [
    ("numeric_answer", ["B", "C"], ["8 of 8 rows read, answer, which rewards.x reads, is no number", "row 1: 'B'"]),
    ("numeric_answer", ["1", None, "#### 2", "one"], ["2 of 8", "is empty; the first is row 2", "row 4: 'one'"]),
    ("exact_match", ["2", '["2"]'], ["4 of 8", "a list written as text", """row 2: '["2"]'"""]),
    ("exact_match", ["[ '2', '3' ]", "2"], ["a list written as text", "row 1"]),
    ("exact_match", ["2", "B", "[2]", "['", '[x"]'], []),
    ("numeric_answer", ["2", "2 apples", "so \\boxed{3}"], []),
]


@pytest.mark.parametrize(("reward", "values", "said"), NOTED)
def test_values_that_get_no_score_are_counted(reward: str, values: list[object], said: list[str], write: Write) -> None:
    own_rows(write, answer=values)
    plan = planned(*OWN.split(), f"reward@rewards.x={reward}")
    texts = " ".join(notice.text for notice in plan.notices if "which rewards.x reads" in notice.text)
    assert [part for part in said if part not in texts] == []
    assert bool(texts) == bool(said)
