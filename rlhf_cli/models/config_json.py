"""Read config.json and tokenizer.json of a model folder, for any architecture."""

from __future__ import annotations

from rlhf_cli.json_values import JsonTree, section

CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification")


def token_ids(tokenizer: JsonTree) -> dict[str, int]:
    """Return token -> id from a tokenizer.json; a Unigram model lists its tokens in order, others map them."""
    vocabulary, added = section(tokenizer, "model").get("vocab"), tokenizer.get("added_tokens")
    known: JsonTree = dict(vocabulary) if isinstance(vocabulary, dict) else {}
    if isinstance(vocabulary, list):
        known = {str(entry[0]): number for number, entry in enumerate(vocabulary) if isinstance(entry, list)}
    for entry in added if isinstance(added, list) else ():
        if isinstance(entry, dict):
            known[str(entry["content"])] = entry["id"]
    return {token: number for token, number in known.items() if isinstance(number, int)}


def language_part(config: JsonTree) -> JsonTree:
    """Return the language model's section in the config of a multimodal model, else the config itself."""
    return section(config, "text_config") or config


def architectures_of(config: JsonTree) -> list[str]:
    """Return the names of the model's classes; empty if the config lists none."""
    named = config.get("architectures")
    return [str(name) for name in named] if isinstance(named, list) else []


def vocab_size_of(config: JsonTree) -> int | None:
    """Return the number of tokens, or None if the config does not contain it."""
    size = language_part(config).get("vocab_size")
    return size if isinstance(size, int) else None


def context_of(config: JsonTree) -> int | None:
    """Return the context length in tokens, or None if the config does not contain it."""
    text = language_part(config)
    sizes = (text.get(name) for name in ("max_position_embeddings", "n_positions"))
    return next((size for size in sizes if isinstance(size, int)), None)


def num_labels_of(config: JsonTree) -> int | None:
    """Return the number of labels, or None if neither the config nor the class determines it."""
    labels, num_labels = config.get("id2label"), config.get("num_labels")
    if isinstance(labels, dict):
        return len(labels)
    if isinstance(num_labels, int):
        return num_labels
    # transformers omits the labels from the file if there are two, its default. Other classes have their own default.
    return 2 if next(iter(architectures_of(config)), "").endswith(CLASSIFIERS) else None
