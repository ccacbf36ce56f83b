"""Reward language consistency: the share of words in the language of the prompt.

After the reward of DeepSeek-R1 (arXiv:2501.12948v1, section 2.3.2): the share of the words in the chain of thought that
are in the target language. **This reward distinguishes scripts, not languages**: Chinese from English, Russian from
Arabic, but not English from French nor Russian from Bulgarian. In return it needs no model, network or extra package.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.completion_text import Completion, Message, content_text, refused_by, text_of
from rlhf_cli.text.suggest import nearest

# Maps a name in the config to the prefixes of its letters' Unicode names.
_SCRIPTS: dict[str, tuple[str, ...]] = {
    "han": ("CJK", "IDEOGRAPHIC"),
    "japanese": ("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "CJK", "IDEOGRAPHIC"),
}
_SAME_NAME = """latin cyrillic greek arabic hebrew armenian georgian ethiopic devanagari bengali gurmukhi gujarati tamil
telugu kannada malayalam sinhala thai lao khmer myanmar tibetan mongolian hangul"""
_SCRIPTS.update({name: (name.upper(),) for name in _SAME_NAME.split()})
LANGUAGES = ("auto", *_SCRIPTS)

# Written without spaces between words: every letter counts as a word.
_UNSPACED = {"CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "THAI", "LAO", "KHMER", "MYANMAR"}
_KANA = {"HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"}
# Chinese contains a few kana (the fashionable の); Japanese prose always contains many.
_JAPANESE_KANA_SHARE = 0.1

# In Latin letters in every language: fenced code, format tags, LaTeX commands, single letters (the x of a formula).
_NO_LANGUAGE = re.compile(
    r"```.*?```|</?[A-Za-z][A-Za-z0-9_-]*>|\\[A-Za-z]+|(?<![^\W\d_])[A-Za-z](?![^\W\d_])", re.DOTALL
)
_MARK = "mark"
_APOSTROPHE = re.compile(r"(?<=[^\W\d_])['’](?=[^\W\d_])")


def language_of(text: str) -> str | None:
    """Return the script that most words of `text` use, the first at a tie; None without words.

    Han with a tenth or more of kana is `japanese`, else `han`.
    """
    words = Counter(_words(text))
    num_kana = sum(words[script] for script in _KANA)
    num_east = num_kana + words["CJK"] + words["IDEOGRAPHIC"]
    east = "japanese" if num_kana >= _JAPANESE_KANA_SHARE * num_east else "han"
    languages: Counter[str] = Counter()
    for script, num in words.items():
        if script in _SCRIPTS["japanese"]:
            languages[east] += num
        else:
            languages.update({name: num for name, scripts in _SCRIPTS.items() if script in scripts})
    return max(languages, key=languages.__getitem__, default=None)


def _check_language(language: str) -> None:
    if language not in LANGUAGES:
        hint = f"args.language={nearest(language, LANGUAGES) or 'auto'}"
        expected = ", ".join(LANGUAGES)
        raise RewardError("unknown script", where="args.language", got=language, expected=expected, hint=hint)


@refused_by(_check_language)
def language_consistency(
    prompts: Sequence[Completion], completions: Sequence[Completion], *, language: str = "auto", **kwargs: object
) -> list[float | None]:
    """Score the share of the completion's words that are in the target's script, 0.0 to 1.0; thinking counts.

    A word is a run of letters of one script; in scripts written without spaces every letter is a word. Digits,
    punctuation, code fences, `<tags>`, LaTeX commands and single Latin letters do not count. None for completions
    without words (`42`: 1.0 would make silence the safest way to the full reward) and, with `auto`, for such prompts.

    Args:
        prompts: one per row; of a conversation, only the last user message is read.
        language: a script's name, or `auto` = the one that dominates the prompt.
    """
    _check_language(language)
    rewards: list[float | None] = []
    for prompt, completion in zip(prompts, completions, strict=True):
        target = language_of(_question(prompt)) if language == "auto" else language
        words = Counter(_words(text_of(completion, reasoning=True)))
        if target is None or not words:
            rewards.append(None)
        else:
            rewards.append(sum(words[script] for script in _SCRIPTS[target]) / words.total())
    return rewards


def _question(prompt: str | Sequence[Message]) -> str:
    """Return the user's last message, because the system prompt is often English in any case."""
    if isinstance(prompt, str):
        return prompt
    asked = [content_text(message) for message in prompt if message.get("role") == "user"]
    return asked[-1] if asked else ""


def _words(text: str) -> Iterator[str]:
    """Yield the script of every word of the text, in order."""
    # NFKC maps full-width, half-width and mathematical letters to ordinary ones.
    text = _NO_LANGUAGE.sub(" ", _APOSTROPHE.sub("", unicodedata.normalize("NFKC", text)))
    previous: str | None = None
    for letter in text:
        script = _script(letter)
        if script == _MARK:
            continue  # an accent or vowel sign belongs to the letter before it
        if script is not None and (script != previous or script in _UNSPACED):
            yield script
        previous = script


@cache
def _script(letter: str) -> str | None:
    category = unicodedata.category(letter)
    if category.startswith("M"):
        return _MARK
    return unicodedata.name(letter, "?").split()[0] if category.startswith("L") else None
