"""The embedded worlds: the same rows from the same seed, and as many mistakes as documented."""

from __future__ import annotations

import json
import re
from collections import Counter
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from rlhf_cli.data import worlds
from rlhf_cli.data.peeking import peek
from rlhf_cli.data.source import DataSource
from rlhf_cli.data.worlds import DEMONSTRATIONS, WORLDS, maker, toy_tasks
from rlhf_cli.data.worlds.toy_tasks import true_score
from rlhf_cli.errors import DataError
from rlhf_cli.rewards.toy import score_speakers

EMBEDDED = sorted(set(WORLDS) - {"reasoning_gym"})


@pytest.mark.parametrize("world", EMBEDDED)
def test_the_same_seed_gives_the_same_rows_and_fewer_are_the_first_of_more(world: str) -> None:
    for table in (WORLDS, DEMONSTRATIONS):
        if world in table:
            generate = maker(table[world])
            assert generate(700, 3) == generate(700, 3) != generate(700, 4)
            assert generate(700, 3)[:20] == generate(20, 3)


def test_draws_are_fair_shuffles_one_after_another() -> None:
    drawn = list(toy_tasks.without_repeats(5, 15, Random(0)))
    assert [sorted(drawn[at : at + 5]) for at in (0, 5, 10)] == [[0, 1, 2, 3, 4]] * 3
    counts = Counter(tuple(toy_tasks.without_repeats(3, 3, Random(seed))) for seed in range(6000))
    assert len(counts) == 6
    assert all(850 < count < 1150 for count in counts.values())  # 1000 expected, deviation 29
    assert len(set(toy_tasks.without_repeats(10**12, 1000, Random(0)))) == 1000


def test_sums_are_right_and_do_not_repeat_before_all_were_drawn() -> None:
    rows = toy_tasks.generate(2 * 36, seed=1, max_value=5)
    assert all(row["prompt"] == f"{row['a']}+{row['b']}=" for row in rows)
    assert all(row["answer"] == str(row["a"] + row["b"]) for row in rows)
    every_pair = {(a, b) for a in range(6) for b in range(6)}
    for part in (rows[:36], rows[36:]):
        assert {(row["a"], row["b"]) for row in part} == every_pair


def test_sum_demonstrations_are_as_bad_as_documented() -> None:
    rows = toy_tasks.demonstrations(4000, seed=0)
    wrong = wordy = 0
    for row in rows:
        a, b = map(int, re.findall("[0-9]+", row["prompt"]))
        (answer,) = map(int, re.findall("[0-9]+", row["completion"]))
        assert abs(answer - a - b) in (0, 1, 2, 10)
        wrong += answer != a + b
        wordy += not row["completion"].isdigit()
    assert (wrong / 4000, wordy / 4000) == pytest.approx((0.35, 0.5), abs=0.03)
    assert worlds.generate("toy_demonstrations", {"wrong_fraction": 0, "num_rows": 9}, seed=0)  # a whole number is one
    clean = toy_tasks.demonstrations(4000, seed=0, wrong_fraction=0.0, wordy_fraction=0.0)
    assert [row["prompt"] for row in clean] == [row["prompt"] for row in rows]
    assert all(str(sum(map(int, row["prompt"][:-1].split("+")))) == row["completion"] for row in clean)


def test_speaker_demonstrations_are_as_sloppy_as_documented() -> None:
    def sound(row: dict[str, str]) -> bool:
        a, b = row["prompt"].removesuffix(":").split(" and ")
        return score_speakers(row["completion"], a, b) != -1.0

    rows = toy_tasks.speaker_demonstrations(3000, seed=0)
    assert sum(map(sound, rows)) / 3000 == pytest.approx(0.5, abs=0.03)


def test_true_score_by_hand() -> None:
    """Two more words cost 0.6; naming several numbers is not an answer."""
    scores = {" 22\n": 1.5, "23": 0.5, "022": 0.5, "9" * 5000: 0.5, "": 0.0, "word " * 100 + "22": 0.6}
    scores |= {"it is 22.": 0.9, "it is 23.": -0.1, "22 or 23": -0.1}
    assert {completion: true_score("17+5=", completion) for completion in scores} == pytest.approx(scores)


def test_preferences_agree_with_the_true_score_and_judgements_are_their_answers_one_by_one() -> None:
    rows = toy_tasks.preferences(2000, seed=1)
    for row in rows:
        assert row["score_chosen"] == true_score(row["prompt"], row["chosen"])
        assert row["score_rejected"] == true_score(row["prompt"], row["rejected"])
        assert row["score_chosen"] > row["score_rejected"]
        assert true_score(row["prompt"], row["reference"]) == 1.5, "TPO's right answer is the best there is"
    # Both parts of the score decide some pairs, else a reward model could do with one of them.
    right = [row["chosen"].startswith(str(eval(row["prompt"][:-1]))) for row in rows]
    assert 0.1 < sum(right) / 2000 < 0.9
    assert any(len(row["chosen"]) > len(row["rejected"]) for row in rows)
    judged = toy_tasks.generate_judgements(2000, seed=1)
    for row, pair in zip(judged, rows, strict=True):
        side = "chosen" if row["label"] else "rejected"
        assert (row["prompt"], row["completion"]) == (pair["prompt"], pair[side])
        assert row["score"] == pair[f"score_{side}"]
    assert sum(row["label"] is True for row in judged) / 2000 == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize(
    ("world", "args", "where", "hint"),
    [
        ("toy_sum", {}, "data.world", "toy_sums"),
        ("toy_sums", {"max_valu": 3}, "data.args.max_valu", "data.args.max_value"),
        ("toy_sums", {"max_value": True}, "data.args.max_value", None),
        ("toy_speakers", {"max_value": 0}, "data.args.max_value", None),
        ("toy_preferences", {"num_rows": 0}, "data.args.num_rows", None),
        ("toy_demonstrations", {"wrong_fraction": 1.5}, "data.args.wrong_fraction", None),
    ],
)
def test_wrong_world_arguments(world: str, args: dict[str, object], where: str, hint: str | None, refusal) -> None:
    for error in (refusal(peek, DataSource(world=world, args=args)), refusal(worlds.generate, world, args, seed=0)):
        assert (error.where, error.hint) == (where, hint)
    found = peek(DataSource(world="toy_sums", args={"num_rows": 30, "seed": 5}), limit=4)
    assert (found.num_rows, found.rows) == (30, toy_tasks.generate(30, 5)[:4])
    assert (found.columns, peek(DataSource(world="toy_sums")).num_rows) == (("prompt", "answer", "a", "b"), 1000)


def test_demonstrations_of_a_world_by_its_name(refusal) -> None:
    assert worlds.demonstrations("toy_sums", 7, seed=3, name="x") == toy_tasks.demonstrations(7, 3)
    for world in ("toy_sum", "toy_preferences"):
        error = refusal(worlds.demonstrations, world, 7, seed=3, name="x")
        assert (error.where, error.expected) == ("x", "one of toy_calls, toy_speakers, toy_sums")


def _pair(row: dict[str, str]) -> tuple[int, ...]:
    return tuple(sorted(int(addend) for addend in row["question"].removesuffix(" =").split(" + ")))


def test_held_out_sums_are_in_no_training_row_in_either_order() -> None:
    for seed in (0, 1):
        train = worlds.generate("split_sums", {"num_rows": 800}, seed=seed)
        held_out = worlds.generate("split_sums", {"num_rows": 200, "held_out": True}, seed=seed)
        trained, others = {_pair(row) for row in train}, {_pair(row) for row in held_out}
        assert trained.isdisjoint(others)
        assert len(trained | others) == 29 * 30 // 2  # every unordered pair of 2..30
        assert all(int(row["answer"]) == sum(_pair(row)) for row in [*train, *held_out])
    assert {_pair(row) for row in worlds.generate("split_sums", {"num_rows": 200, "held_out": True}, seed=9)} == others
    with pytest.raises(DataError) as caught:
        toy_tasks.generate_split(3, 0, max_value=2)
    assert (caught.value.where, caught.value.expected) == ("max_value", "3 or more")


def test_held_out_dialogues_are_in_no_training_row() -> None:
    train = worlds.generate("hh_pairs", {"num_rows": 441}, seed=0)
    held_out = worlds.generate("hh_pairs", {"num_rows": 110, "held_out": True}, seed=0)
    prompts, others = ({json.dumps(row["prompt"]) for row in rows} for rows in (train, held_out))
    assert (len(prompts), len(others), len(prompts & others)) == (441, 110, 0)
    again = worlds.generate("hh_pairs", {"num_rows": 110, "held_out": True}, seed=1)
    assert {json.dumps(row["prompt"]) for row in again} == others
    for row in [*train, *held_out]:
        assert row["prompt"][-1]["role"] == "user"
        assert row["chosen"] != row["rejected"]
    for rows, arguments in ((train, {"num_rows": 252}), (held_out, {"num_rows": 73, "held_out": True})):
        of_one_turn = worlds.generate("hh_pairs", {**arguments, "single_turn": True}, seed=0)
        short = {json.dumps(row["prompt"]) for row in rows if len(row["prompt"]) == 1}
        assert {json.dumps(row["prompt"]) for row in of_one_turn} == short
        assert len(short) == arguments["num_rows"]


SOURCE = Path(__file__).parents[2].parent / "shared" / "data" / "hh-harmless.jsonl.gz"


@pytest.mark.skipif(not SOURCE.exists(), reason="needs hh-harmless.jsonl.gz of Anthropic's data beside the project")
def test_the_embedded_dialogues_are_those_of_the_source(tmp_path: Path) -> None:
    from scripts.hh_pairs import main

    main(SOURCE, tmp_path / "made.gz")
    shipped = Path(worlds.__file__).with_name("hh_pairs.jsonl.gz")
    assert (tmp_path / "made.gz").read_bytes() == shipped.read_bytes()
    assert shipped.stat().st_size < 1_000_000


def test_the_rows_of_a_seed_stay_what_they_are() -> None:
    """Runs of two releases are compared on the same rows; a hash of each world, its held-out rows, demonstrations."""
    made = {name: worlds.generate(name, {"num_rows": 300}, seed=3) for name in EMBEDDED}
    for name in ("hh_pairs", "split_sums"):
        made[f"{name}-held_out"] = worlds.generate(name, {"num_rows": 300, "held_out": True}, seed=3)
    for name in DEMONSTRATIONS:
        made[f"{name}-demonstrations"] = [*worlds.demonstrations(name, 300, seed=3, name="x")]
    assert {name: sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:8] for name, rows in made.items()} == {
        "hh_pairs": "5ed50cac",
        "split_sums": "bd17dfb4",
        "toy_demonstrations": "6f9a3ff3",
        "toy_judgements": "0cef50bf",
        "toy_preferences": "786d0faf",
        "toy_speakers": "6774962d",
        "toy_sums": "37059ea0",
        "hh_pairs-held_out": "7df19b2b",
        "split_sums-held_out": "6a5dfe1b",
        "toy_calls-demonstrations": "18d69710",
        "toy_speakers-demonstrations": "fdcacbb8",
        "toy_sums-demonstrations": "6f9a3ff3",
    }
