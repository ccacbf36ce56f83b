"""Incomplete tokenizers, prompts that leave no room for an answer, and bad rows are reported from files alone.

The embedded model reads 512 tokens, a byte each, and quickstart writes at most 16: a prompt may have 496.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_cli.errors import ConfigError, DataError, ModelError, Problems
from rlhf_cli.models.tokenizer_files import EMBEDDED_TOKENIZER, read_tokenizer
from rlhf_cli.plan.checks.data_checks import source_problems
from rlhf_cli.plan.checks.facts import DataFacts, Report
from rlhf_cli.plan.checks.prompt_checks import has_conversations, text_argument_problems, tokenizer_problems
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.plan.prompt_room import served_tokens
from rlhf_cli.plan.row_tokens import start_notices, vocabulary_problems
from rlhf_cli.runs.reward_records import write_text_endings, write_training_format
from tests.support.model_copies import CONTEXT_TOKENS, model_copy, tokenizer_json
from tests.support.planning import MINE, ROWS, Refused, Write, planned, subject_of, table, told, unsaid

ROOM = CONTEXT_TOKENS - 16
MODEL = ("model=local", "model.path=model")
_TOKENS = read_tokenizer(EMBEDDED_TOKENIZER, where="model.path").tokens
LAST = max(_TOKENS, key=_TOKENS.__getitem__)
SPARE = json.loads(tokenizer_json(["a"], added={LAST: 257}))["added_tokens"]
CHAT = "data.prompt=[{role: user, content: '{a}+1='}]"
SCORER = {"architectures": ["LlamaForSequenceClassification"], "num_labels": 1, "id2label": {"0": "a"}}
TALK = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def one_of(characters: int) -> str:
    return json.dumps({"prompt": "x" * characters, "a": 1, "b": 1}) + "\n"


def conversation(characters: int = 4) -> str:
    prompt = [{"role": "user", "content": "x" * characters}]
    return json.dumps({"prompt": prompt, "a": 1, "b": 1}) + "\n"


@pytest.mark.fault(43)
class TestRoom:
    def test_a_prompt_that_leaves_none(self, place, write: Write, refused: Refused) -> None:
        model_copy(place / "model")
        write("rows.jsonl", ROWS + one_of(ROOM + 1))
        error = refused(*MINE, *MODEL)
        assert isinstance(error, DataError)
        assert "row 21" in str(error.where)
        assert error.got == f"1 of 21 prompts are longer, the longest has {ROOM + 1} tokens"
        assert "data.overlong_prompts=drop or truncate" in str(error.advice)

    @pytest.mark.parametrize(("policy", "says"), [("drop", "are left out"), ("truncate", "lose their beginnings")])
    def test_dropped_and_cut_prompts_are_counted(self, write: Write, policy: str, says: str) -> None:
        write("rows.jsonl", ROWS + one_of(600) * 2)
        plan = planned(*MINE, f"data.overlong_prompts={policy}")
        (notice,) = plan.notices
        assert plan.workload.longest_prompt == ROOM, "what is left out or cut needs no memory"
        assert plan.num_rows == (20 if policy == "drop" else 22)
        write("held.jsonl", ROWS + one_of(600))
        write("rows.jsonl", ROWS)
        held = ("data.eval.path=held.jsonl", "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=60")
        evaluated = planned(*MINE, f"data.overlong_prompts={policy}", *held)
        assert (evaluated.num_rows, evaluated.num_held_out) == (20, 20 if policy == "drop" else 21)
        assert notice.text == f"data: 2 of 22 prompts have more than {ROOM} tokens (the longest 600) and {says}"

    def test_a_conversation_is_counted_as_its_template_writes_it(self, write: Write, refused: Refused) -> None:
        """`user: ` and a line end around the words, and `assistant: ` behind: 6 + 1 + 11 tokens more."""
        write("rows.jsonl", conversation() * 20 + conversation(ROOM - 18))
        plan = planned(*MINE)
        assert (plan.notices, plan.workload.longest_prompt) == ((), ROOM)
        write("rows.jsonl", conversation() * 20 + conversation(ROOM - 17))
        assert f"the longest has {ROOM + 1} tokens" in str(refused(*MINE).got)

    def test_answers_as_long_as_the_context(self, refused: Refused) -> None:
        error = refused("exp=quickstart", "trainer.args.max_completion_length=512")
        assert isinstance(error, ConfigError)
        assert error.where == "trainer.args.max_completion_length (command line)"
        assert (error.got, error.hint) == (
            "512 tokens; the model's context has 512",
            "trainer.args.max_completion_length=256",
        )


@pytest.mark.fault(44)
class TestTokenizer:
    def test_conversations_without_a_template(self, place, write: Write, refused: Refused) -> None:
        model_copy(place / "model", without=("chat_template.jinja",))
        write("rows.jsonl", ROWS)
        assert planned(*MINE, *MODEL).num_rows == 20
        for rows, words in ((conversation() * 20, ()), (ROWS, (CHAT,))):
            write("rows.jsonl", rows)
            error = refused(*MINE, *MODEL, *words)
            assert isinstance(error, ModelError)
            assert error.where == "model.path (command line)"
            assert "model.chat_template=FILE.jinja" in str(error.hint)

    def test_rows_are_conversations_if_a_column_that_is_read_holds_messages(self, write: Write) -> None:
        write("rows.jsonl", '{"text": "a", "messages": [{"role": "user", "content": "a"}], "other": 1}\n')
        for words, is_chat in ((("trainer=sft",), True), (("exp=quickstart",), False)):
            subject = subject_of(*words, "data=file", "data.path=rows.jsonl")
            data = Report().run(source_problems(subject), DataFacts())
            assert has_conversations(subject.experiment, data) is is_chat

    @pytest.mark.parametrize("template", ["./gone", "gone.jinja"])
    def test_a_template_that_does_not_exist(self, refused: Refused, template: str) -> None:
        error = refused("+exp=toy_sft", f"+trainer.args.chat_template_path={template}")
        assert error.where == "trainer.args.chat_template_path (command line)"

    def test_a_tokenizer_without_a_model_may_bring_the_template(self, place: Path) -> None:
        tokenizer = model_copy(place / "spoken", without=("config.json",))
        subject = subject_of("exp=toy_sft", f"+trainer.args.chat_template_path={tokenizer}")
        data = Report().run(source_problems(subject), DataFacts())
        assert told(tokenizer_problems(subject, data)) == []

    def test_a_template_of_trls_argument_is_the_models(self, place, write: Write) -> None:
        write("mine.jinja", "{{ messages }}")
        made = prepare(["+exp=toy_sft", "+trainer.args.chat_template_path=mine.jinja"]).experiment
        assert made.model.chat_template == "{{ messages }}"
        assert "chat_template_path" not in made.trainer.args

    @pytest.mark.parametrize(
        ("changed", "parts"),
        [
            ({"tokenizer_config": {"eos_token": None}}, "model.path  model: eos_token is not set"),
            (
                {"config": {"vocab_size": 200}},  # of 258
                "model.path  58 tokens of model are 200 and more / is 200 / below / 200  / ~model.tokenizer",
            ),
            ({"config": {"vocab_size": 258}}, ""),
            ({"config": {"vocab_size": 257}}, "1 tokens of model are 257 and more"),
            ({"config": {"vocab_size": 257}, "tokenizer": {"added_tokens": SPARE}}, ""),
            (
                {
                    "config": {"vocab_size": 257},
                    "tokenizer": {"added_tokens": SPARE},
                    "tokenizer_config": {"pad_token": LAST},
                },
                "1 tokens",
            ),
        ],
    )
    def test_no_token_for_the_end_or_more_than_the_model_knows(self, place, changed, parts: str) -> None:
        """A spare token that no text produces does not count, unless it is the one that pads."""
        model_copy(place / "model", **changed)
        subject = subject_of("exp=quickstart", *MODEL)
        found = told(tokenizer_problems(subject, DataFacts()))
        assert unsaid(found, parts) == []

    @pytest.mark.parametrize(
        ("row", "template", "got"),
        [
            ({"text": "a"}, "", None),
            ({"text": f"a{LAST}"}, "", f"{LAST!r}, id 257"),
            ({"input_ids": [5, 257]}, "", "the id 257"),
            ({"input_ids": [5, -1]}, "", "the id -1"),
            ({"input_ids": [0, 256]}, "", None),
            ({"messages": TALK}, "{{ messages }}", None),
            ({"messages": TALK}, "{{ messages }}" + LAST, f"{LAST!r}, id 257"),
        ],
    )
    def test_a_row_with_a_token_beyond_the_vocabulary(
        self, place, write: Write, row: dict[str, object], template: str, got: str | None
    ) -> None:
        """The text of a row, its ids, or the chat template may bring it."""
        folder = model_copy(place / "model", config={"vocab_size": 257}, tokenizer={"added_tokens": SPARE})
        (folder / "chat_template.jinja").write_text(template)
        write("rows.jsonl", (json.dumps(row) + "\n") * 8)
        subject = subject_of("trainer=sft", "data=file", "data.path=rows.jsonl", *MODEL)
        data = Report().run(source_problems(subject), DataFacts())
        tokenizer = Report().run(tokenizer_problems(subject, data), None)
        found = told(vocabulary_problems(replace(subject, tokenizer=tokenizer), data))

        assert [one[:2] for one in found] == ([("data, row 1", got)] if got else [])

    @pytest.mark.parametrize(
        ("trainer", "row", "adds_at", "said"),
        [
            ("sft", {"text": "<eos>a"}, 0, ["<eos> would begin"]),
            ("sft", {"text": "a<eos>"}, 0, []),
            ("sft", {"messages": [{"role": "user", "content": "<eos>a"}, *TALK]}, 0, []),
            ("grpo reward@rewards.short=brevity", {"prompt": "<eos>a"}, 0, ["<eos> would begin"]),
            ("dpo", {"prompt": "<eos>a", "chosen": "b", "rejected": "c"}, 0, ["<eos> would begin"]),
            ("reward", {"chosen": "b", "rejected": "<eos>c"}, 0, ["<eos> would begin"]),
            ("grpo reward@rewards.short=brevity", {"prompt": "a"}, 1, ["the tokenizer adds <eos>"]),
            ("grpo reward@rewards.short=brevity", {"prompt": [TALK[0]]}, 1, []),
        ],
    )
    def test_a_token_that_would_begin_a_text_twice_or_end_a_prompt(
        self, place, write: Write, trainer: str, row: dict[str, object], adds_at: int, said: list[str]
    ) -> None:
        single: list[dict[str, object]] = [{"Sequence": {"id": "A", "type_id": 0}}]
        single.insert(adds_at, {"SpecialToken": {"id": "<eos>", "type_id": 0}})
        special = {"<eos>": {"id": "<eos>", "ids": [1], "tokens": ["<eos>"]}}
        adds = {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": special}
        model_copy(place / "model", tokenizer={"post_processor": adds})
        write("rows.jsonl", (json.dumps(row) + "\n") * 8)
        subject = subject_of(*f"trainer={trainer}".split(), "data=file", "data.path=rows.jsonl", *MODEL)
        data = Report().run(source_problems(subject), DataFacts())
        tokenizer = read_tokenizer(place / "model", where="model.path")
        found = list(start_notices(replace(subject, tokenizer=tokenizer), data))
        assert [text[: len(start)] for start, text in zip(said, [one.text for one in found], strict=True)] == said

    def test_it_is_read_with_the_templates_of_the_model_section(self, place, write: Write) -> None:
        model_copy(place / "model")
        words = ("model.response_template={start_anchor: 'x'}", "model.chat_template='{{ messages }}'")
        subject = subject_of("exp=quickstart", *MODEL, *words)
        made = Report().run(tokenizer_problems(subject, DataFacts()), None)
        assert made is not None
        assert (made.settings["response_template"], made.chat_template) == ({"start_anchor": "x"}, "{{ messages }}")

    def test_another_tokenizer_without_files_or_with_more_tokens_than_a_built_model(
        self, place, write: Write, refused: Refused
    ) -> None:
        write("rows.jsonl", ROWS)
        model_copy(place / "bare", without=("tokenizer.json", "tokenizer_config.json"))
        tokens = tokenizer_json({f"w{number}": number for number in range(300)})
        (model_copy(place / "large") / "tokenizer.json").write_text(tokens)
        for named in ("bare", "rows.jsonl", "./no", "large"):
            assert refused(*MINE, f"model.tokenizer={named}").where == "model.tokenizer (command line)"

    @pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
    def test_a_damaged_file_is_reported_once(self, place, write: Write, refused: Refused, name: str) -> None:
        """Counting the tokens of the long prompt reads it as well."""
        (model_copy(place / "model") / name).write_text("{")
        write("rows.jsonl", ROWS + one_of(600))
        error = refused(*MINE, *MODEL, "data.overlong_prompts=drop")
        assert error.where == "model.path (command line)"
        assert name in str(error.got)


def test_what_a_template_does_not_read_is_told_in_the_order_of_its_settings() -> None:
    names = "zxwvutsrqp"
    settings = ", ".join(f"{name}: 1" for name in names)
    with pytest.raises(Problems) as caught:
        planned("exp=quickstart", f"trainer.args.chat_template_kwargs={{{settings}}}")
    assert [str(one.where).partition(" ")[0][-1] for one in caught.value.problems] == [*names]


def test_the_context_of_vllm_counts_only_where_it_generates() -> None:
    limited = ("exp=quickstart", "trainer.args.vllm_max_model_length=20")
    assert served_tokens(prepare([*limited, "launch.rollout=hf"]).experiment) is None
    assert served_tokens(prepare([*limited, "launch.rollout=vllm"]).experiment) == 20


class TestFormat:
    def test_the_format_that_a_model_was_trained_in_moves_with_it(self, place, write: Write) -> None:
        """Its folder records it, so a copy outside of its run is compared, too."""
        model_copy(
            place / "model", without=("chat_template.jinja",), tokenizer_config={"chat_template": "{{ messages }}"}
        )
        write("rows.jsonl", ROWS)
        for recorded, words, notice in (
            (None, (), "has a chat template"),
            (True, (), "has a chat template"),
            (False, (), None),
            (None, (CHAT,), None),
            (True, (CHAT,), None),
            (False, (CHAT,), "was trained on plain texts"),
        ):
            if recorded is not None:
                write_training_format(place / "model", conversations=recorded)
            texts = [notice.text for notice in planned(*MINE, *MODEL, *words).notices]
            assert len(texts) == (notice is not None), (recorded, words)
            assert notice is None or notice in texts[0]
            (place / "model/training_format.json").unlink(missing_ok=True)
        write_training_format(model_copy(place / "ours"), conversations=True)  # with an embedded model's template
        (told_once,) = planned(*MINE, "model=local", "model.path=ours").notices
        assert "has a chat template" in told_once.text

    def test_advice_for_bare_text_is_what_the_trainer_takes(self, place, write: Write) -> None:
        """A template makes messages of the prompt alone, and a trainer of rows refuses those beside bare answers."""
        model_copy(place / "model")
        (place / "model/chat_template.jinja").write_text("{{ messages }}{{ eos_token }}")
        write("rows.jsonl", ROWS)
        (notice,) = planned(*MINE, *MODEL).notices
        assert "data.prompt='[{role: user" in notice.text
        write("rows.jsonl", '{"prompt": "1+1=", "completion": "2"}\n' * 20)
        sft = ("trainer=sft", "data=file", "data.path=rows.jsonl", *MODEL)
        (notice,) = planned(*sft).notices
        (typed,) = re.findall(r"data\.prompt='(.*?)'", notice.text)
        assert planned(*sft, f"data.prompt={typed}").notices == ()
        write("rows.jsonl", '{"text": "1+1=2"}\n' * 20)
        (notice,) = planned(*sft).notices
        assert "data.prompt" not in notice.text
        write("rows.jsonl", '{"input_ids": [5, 6, 7]}\n' * 20)
        assert planned("trainer=sft", "data=file", "data.path=rows.jsonl", *MODEL).notices == (), "they are no text"

    def test_a_reward_model_of_another_format_gives_a_notice(self, place, write: Write) -> None:
        """One that was trained on plain texts says so in its folder; another has a chat template of its own."""
        judge = model_copy(place / "judge", config=SCORER)
        judged = (*MINE, "+rewards.judge.model=judge")
        write("rows.jsonl", ROWS)
        for words in ((), (CHAT,)):
            assert not planned(*judged, *words).notices
        write_text_endings(judge, with_eos=True)
        assert not planned(*judged).notices
        (notice,) = planned(*judged, CHAT).notices
        assert notice.subject == "rewards.judge"
        assert "was trained on plain texts" in notice.text
        write_text_endings(judge, with_eos=False)
        (judge / "chat_template.jinja").write_text("{{ messages[0]['content'] }}!")
        assert not planned(*judged, CHAT).notices
        (notice,) = planned(*judged).notices
        assert "judge has a chat template" in notice.text
        for conversations, number in ((True, 0), (False, 1)):
            write_training_format(judge, conversations=conversations)
            assert len(planned(*judged, CHAT).notices) == number

    def test_a_reward_model_that_pads_with_its_end_gives_a_notice(self, place, write: Write) -> None:
        """It reads no end of a bare text; the template of a conversation writes other tokens there."""
        model_copy(place / "judge", config=SCORER, tokenizer_config={"pad_token": "<eos>"})
        write("rows.jsonl", ROWS)
        judged = (*MINE, "+rewards.judge.model=judge")
        assert [notice.subject for notice in planned(*judged).notices] == ["rewards.judge"]
        assert planned(*judged, CHAT).notices == ()
        model_copy(place / "model", tokenizer_config={"pad_token": "<eos>"})  # one that is to be trained
        write("pairs.jsonl", lines(*[pair()] * 20))
        for padding, says in (("null", "pads with <pad>"), ("'<eos>'", "never reads it"), ("'<pad>'", None)):
            made = planned("exp=toy_reward", *PAIRS, *MODEL, f"++trainer.args.pad_token={padding}").notices
            texts = [notice.text for notice in made if notice.subject == "trainer.args.pad_token"]
            assert [says is not None and says in text for text in texts] == [True] * (says is not None)


PAIRS = ("data=file", "data.path=pairs.jsonl", "~data.eval", "trainer.args.eval_strategy=no", "launch=cpu")


def lines(*rows: dict[str, object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def pair(**columns: object) -> dict[str, object]:
    return {"prompt": "1+1=", "chosen": "2", "rejected": "3", **columns}


def test_pairs_that_are_left_out_are_not_held_against_the_data(write: Write, refused: Refused) -> None:
    leave = "reward_model.on_bad_pair=drop"
    write("pairs.jsonl", lines(pair(), pair(rejected="2"), pair(chosen="")))
    assert planned("exp=toy_reward", leave, *PAIRS).num_rows == 1
    write("pairs.jsonl", lines(pair(rejected="2"), pair(chosen="")))
    assert refused("exp=toy_reward", leave, *PAIRS).got == "1 with empty answers, 1 with identical answers"


@pytest.mark.parametrize("words", [MINE, ("exp=toy_sft",)])
def test_prompts_that_are_also_trained_on_are_counted(write: Write, words: tuple[str, ...]) -> None:
    train, held = ({"prompt": prompt, "completion": "2", "a": 1, "b": 1} for prompt in ("1+1=", "1+2="))
    write("rows.jsonl", lines(*[train] * 20))
    held_out = ("data.eval.path=held.jsonl", "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=60")
    for shared, text in ((2, "2 of 3 evaluation rows"), (3, "all 3 evaluation rows"), (0, None)):
        write("held.jsonl", lines(*[train] * shared, *[held] * (3 - shared)))
        plan = planned(*words, "data=file", "data.path=rows.jsonl", *held_out)
        notices = [notice.text for notice in plan.notices if notice.subject == "data.eval"]
        assert len(notices) == (text is not None)
        assert text is None or notices[0].startswith(text)


@pytest.mark.parametrize(("prompt", "notices"), [(r"{prompt}\nA:", 1), (r"{prompt} \nabla", 0), ("{prompt}\nA:", 0)])
def test_a_backslash_and_an_n_in_a_template(prompt: str, notices: int) -> None:
    found = planned("exp=quickstart", f"data.prompt='{prompt}'").notices
    assert len([notice for notice in found if notice.subject == "data.prompt"]) == notices


ASKED = [{"role": "user", "content": "2+3?"}]
_CALL = {"type": "function", "function": {"name": "look_up", "arguments": {"x": 1}}}
CALLING = [{"role": "assistant", "content": "", "tool_calls": [_CALL]}, {"role": "tool", "content": "7"}]
ANSWER = [{"role": "assistant", "content": "<think>two, three</think>5"}]
BARE = "model.chat_template='{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}'"


@pytest.mark.parametrize(
    ("words", "row", "chat_model", "says"),
    [
        (["trainer=grpo", BARE], {"prompt": ASKED}, "qwen2_5", "write '<assistant>' itself"),
        (["trainer=ppo", BARE], {"prompt": ASKED}, "qwen2_5", "write '<assistant>' itself"),
        (["trainer=grpo", BARE.replace("<{{ m.role }}>", "")], {"prompt": ASKED}, "qwen2_5", None),
        (["trainer=grpo"], {"prompt": ASKED}, "qwen2_5", None),
        (["trainer=sft", BARE], {"prompt": ASKED, "completion": ANSWER}, "qwen2_5", None),
        (["trainer=sft"], {"messages": [*ASKED, *ANSWER]}, "deepseek_r1_distill", "does not write what is in <think>"),
        (["trainer=sft"], {"messages": [*ASKED, *ANSWER]}, "qwen3", None),
        (["trainer=sft"], {"prompt": ASKED, "completion": [*CALLING, *ANSWER]}, "qwen2_5", "messages by tool in 32 of"),
        (["trainer=sft"], {"messages": [*ASKED, *CALLING, *ANSWER]}, "qwen2_5", None),
        (["trainer=dpo"], {"prompt": ASKED, "chosen": [*CALLING, *ANSWER], "rejected": ANSWER}, "qwen2_5", "by tool"),
        (["trainer=reward"], {"prompt": ASKED, "chosen": [*CALLING, *ANSWER], "rejected": ANSWER}, "qwen2_5", None),
    ],
    indirect=["chat_model"],
)
def test_what_a_template_or_a_loss_does_with_an_answer_is_told(
    words: list[str], row: dict[str, object], chat_model: str, says: str | None, write: Write
) -> None:
    write("rows.jsonl", 32 * (json.dumps(row) + "\n"))
    rewards = ["+reward@rewards.x=brevity"] * ({*row} == {"prompt"})
    notices = planned("model=local", chat_model, "data=file", "data.path=rows.jsonl", *rewards, *words).notices
    found = [notice.text for notice in notices if notice.subject == "data"]
    assert [says in text for text in found] == ([True] if says is not None else [])


OF_ASSISTANT = "{% for m in messages %}{% generation %}{{ m.content }}IN{% endgeneration %}OUT{% endfor %}"


@pytest.mark.parametrize(
    ("words", "template", "is_told"),
    [
        *((trainer, "{{ messages }}", trainer in ("sft", "dpo", "kto")) for trainer in ("sft", "dpo", "kto", "orpo")),
        ("reward", "{{ messages }}", False),
        ("sft", "{{ messages }}<eos> \n", False),
        ("sft", "{{ messages }}!", False),  # by generation_config.json
        ("sft trainer.args.eos_token=b", "{{ messages }}b", False),
        *(
            ("sft trainer.args.assistant_only_loss=true", OF_ASSISTANT.replace(place, "<eos>"), place == "OUT")
            for place in ("IN", "OUT")
        ),
    ],
)
def test_a_template_that_does_not_end_answers(
    words: str, template: str, is_told: bool, place: Path, write: Write
) -> None:
    folder = model_copy(place / "model", generation_config={"eos_token_id": [1, _TOKENS["!"]]})
    (folder / "chat_template.jinja").write_text(template)
    row = {"prompt": ASKED, "completion": ANSWER, "chosen": ANSWER, "rejected": TALK[1:], "label": True}
    write("rows.jsonl", lines(row, row | {"label": False}) * 16)
    notices = planned(*f"trainer={words}".split(), *MODEL, "data=file", "data.path=rows.jsonl").notices
    assert sum("learn to stop" in notice.text for notice in notices) == is_told


@pytest.mark.parametrize("chat_model", ["qwen3"], indirect=True)
def test_where_trl_takes_a_template_of_its_own_its_other_texts_are_told(
    chat_model: str, write: Write, refused: Refused
) -> None:
    words = ["trainer=sft", "trainer.args.assistant_only_loss=true", "data=file", "data.path=rows.jsonl"]
    for row, is_told in (([*ASKED, *ANSWER], 0), ([*ASKED, *ANSWER, *ASKED, *ANSWER], 1)):  # an earlier thought is kept
        write("rows.jsonl", 32 * (json.dumps({"messages": row}) + "\n"))
        notices = planned(*words, "model=local", chat_model).notices
        assert sum("with <think> where the model's leaves it out" in one.text for one in notices) == is_told
    assert "assistant_only_loss" in str(refused(*words, "model=tiny").where)


@pytest.mark.parametrize("argument", [True, False])
def test_a_variable_that_the_template_lacks_is_set_by_the_trainer_or_the_rows(
    argument: bool, write: Write, refused: Refused
) -> None:
    row = {"prompt": ASKED} if argument else {"messages": [*ASKED, *ANSWER]}
    write("rows.jsonl", lines(row) * 32)
    words = ["trainer=grpo", "+reward@rewards.x=brevity"] if argument else ["trainer=sft"]
    words += ["model=tiny", "data=file", "data.path=rows.jsonl", "model.chat_template='{{ me.name }}{{ messages }}'"]
    error = refused(*words)
    key = "trainer.args.chat_template_kwargs.me=VALUE" if argument else "a column chat_template_kwargs with {me: VALUE}"
    assert str(error.hint).startswith(key)
    write("rows.jsonl", lines(row if argument else row | {"chat_template_kwargs": {"me": {"name": "x"}}}) * 32)
    assert planned(*words, *["trainer.args.chat_template_kwargs.me.name=x"] * argument).num_rows == 32


# what is typed; what the error says: its key, what it got and expected, what to type
TEXTS = """
exp=toy_sft ++A.eos_token=zz              | A.eos_token  'zz'  a token / '~A.eos_token'
exp=toy_sft ++A.pad_token=zz              | A.pad_token  'zz'  a token / '~A.pad_token'
exp=toy_sft ++A.pad_token=a ++A.eos_token=null |
KEY={temprature:0.5}                      | KEY.temprature  0.5  None  '~KEY.temprature' KEY.temperature=0.5
KEY={top_k:abc}                           | KEY.top_k  abc  a whole number / '~KEY.top_k'
KEY={do_sample:soon}                      | KEY.do_sample  soon / '~KEY.do_sample'
KEY={stop_strings:[4]}                    | KEY.stop_strings  [4] / '~KEY.stop_strings'
KEY={return_dict_in_generate:true}        | KEY.return_dict_in_generate  True / '~KEY.return_dict_in_generate'
KEY={return_dict_in_generate:false}       |
KEY={zzz:1}                               | KEY.zzz  1  None  '~KEY.zzz'  END
KEY=top_k:3                               | KEY  top_k:3  a mapping
KEY={stop:['é']}                          | KEY  ["é"]  stop_strings / '~KEY.stop' 'KEY.stop_strings=["é"]'
KEY={stop:null}                           |
KEY={stop:null,top_k:3,stop_strings:[.],min_new_tokens:1,top_p:1} |
launch.rollout=continuous KEY={stop:[a]}  | KEY  ["a"]  launch.rollout=hf, or vLLM  launch.rollout=hf
launch.rollout=vllm KEY={stop_strings:[a],zzz:1} | KEY  ["a"]  stop / '~KEY.stop_strings' 'KEY.stop=["a"]'
launch.rollout=vllm KEY={stop:[a]}        |
"""


@pytest.mark.parametrize(("words", "parts"), table(TEXTS, KEY="A.generation_kwargs"))
def test_tokens_and_settings_of_generation_that_nothing_reads(words: str, parts: str) -> None:
    tokenizer, typed = read_tokenizer(EMBEDDED_TOKENIZER, where="model.path"), words.replace("A.", "trainer.args.")
    subject = subject_of(*["exp=quickstart"][typed.startswith("exp") :], *typed.split())
    assert unsaid(told(text_argument_problems(replace(subject, tokenizer=tokenizer))), parts) == []
    decoder = {"added_tokens_decoder": {"300": {"content": "zz"}}}
    for other in (None, replace(tokenizer, settings=decoder)):
        assert (
            unsaid(
                told(text_argument_problems(replace(subject, tokenizer=other))), "" if "_token=zz" in words else parts
            )
            == []
        )
