"""Reads what the JSON files of a model folder say of it: config.json and tokenizer.json, whoever wrote them."""

from __future__ import annotations

from rlhf_cli.json_values import JsonTree, section

CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification")


def token_ids(tokenizer: JsonTree) -> dict[str, int]:
    """Return token -> id in a tokenizer.json; a Unigram model lists its tokens in order, others map them."""
    vocabulary, added = section(tokenizer, "model").get("vocab"), tokenizer.get("added_tokens")
    known: JsonTree = dict(vocabulary) if isinstance(vocabulary, dict) else {}
    if isinstance(vocabulary, list):
        known = {str(entry[0]): number for number, entry in enumerate(vocabulary) if isinstance(entry, list)}
    for entry in added if isinstance(added, list) else ():
        if isinstance(entry, dict):
            known[str(entry["content"])] = entry["id"]
    return {token: number for token, number in known.items() if isinstance(number, int)}


def language_part(config: JsonTree) -> JsonTree:
    """Return the part about the language model, in the config of one that sees pictures too."""
    return section(config, "text_config") or config


def architectures_of(config: JsonTree) -> list[str]:
    """Return the names of the model's classes; none where the config names none."""
    named = config.get("architectures")
    return [str(name) for name in named] if isinstance(named, list) else []


def vocab_size_of(config: JsonTree) -> int | None:
    """Return the number of tokens; None where the config does not say."""
    size = language_part(config).get("vocab_size")
    return size if isinstance(size, int) else None


def context_of(config: JsonTree) -> int | None:
    """Return how many tokens the model reads; None where the config does not say."""
    text = language_part(config)
    sizes = (text.get(name) for name in ("max_position_embeddings", "n_positions"))
    return next((size for size in sizes if isinstance(size, int)), None)


def num_labels_of(config: JsonTree) -> int | None:
    """Return the number of labels; None where neither the config nor the class says."""
    labels, num_labels = config.get("id2label"), config.get("num_labels")
    if isinstance(labels, dict):
        return len(labels)
    if isinstance(num_labels, int):
        return num_labels
    # transformers leaves the labels out of the file when there are two, its default; other classes have their own.
    return 2 if next(iter(architectures_of(config)), "").endswith(CLASSIFIERS) else None
