# Functions for the comments `<!-- before: ... -->` of the documents: runs, experiments and files that a page needs.

# small WORDS: a training of two steps
small() { rlhf train track=none trainer.args.max_steps=2 "$@"; }

# begun EXP: its run `mine`, stopped by a signal after its first steps
begun() {
  "$PYTHON" -m rlhf_cli train "+exp=$1" run.name=mine track=none expect=null & local run=$!
  until grep -qs step "runs/$1/mine/metrics.jsonl"; do kill -0 "$run"; sleep 0.2; done
  kill -TERM "$run"
  wait "$run" || test $? = 75
}

# experiment NAME ...: quickstart under other names
experiment() {
  mkdir -p conf/exp
  local name
  for name in "$@"; do printf '# @package _global_\n# %s\ndefaults: [quickstart]\n' "$name" > "conf/exp/$name.yaml"; done
}

# problems FILE: questions and answers in the form of GSM8K
problems() {
  python - "$1" <<'END'
import json, sys
with open(sys.argv[1], "w") as file:
    for a in range(40):
        question, total = f"Ann has {a} apples and buys {a + 3} more. How many has she?", 2 * a + 3
        file.write(json.dumps({"question": question, "answer": f"{a} + {a + 3} is {total}.\n#### {total}"}) + "\n")
END
}

# pairs FILE: pairs of answers with scores, and two columns to slice by
pairs() {
  python - "$1" <<'END'
import json, sys
with open(sys.argv[1], "w") as file:
    for a in range(200):
        pair = {"prompt": f"{a}+2=", "chosen": str(a + 2), "rejected": "I think so"}
        scores = {"score_chosen": 8 + a % 2, "score_rejected": 3}
        slices = {"kind": "odd" if a % 2 else "even", "subset": "math-prm" if a % 2 else "hep-python"}
        file.write(json.dumps(pair | scores | slices) + "\n")
END
}

# dialogues FILE.jsonl.gz: pairs in Anthropic's form
dialogues() {
  python - "$1" <<'END'
import gzip, json, sys
with gzip.open(sys.argv[1], "wt") as file:
    for a in range(120):
        said = f"\n\nHuman: What is {a} and 1?\n\nAssistant: "
        file.write(json.dumps({"chosen": f"{said}It is {a + 1}.", "rejected": f"{said}Who knows."}) + "\n")
END
}

# cities: the table of docs/how-to/scoring.md
cities() {
  printf '%s\n' country,city France,Paris Japan,Tokyo Peru,Lima Italy,Rome Spain,Madrid Cuba,Havana Egypt,Cairo \
    India,Delhi > capitals.csv
}

# capitals: the experiment of docs/how-to/scoring.md, and answers to its prompts with labels
capitals() {
  cities
  mkdir -p conf/exp
  cat > rewards.py <<'END'
def polite(completions, **kwargs):
    return [float("please" in text.lower() or "thank" in text.lower()) for text in completions]


def capital(completions, city, **kwargs):
    return [float(name in text) for text, name in zip(completions, city)]
END
  cat > conf/exp/capitals.yaml <<'END'
# @package _global_
defaults: [{override /trainer: grpo}, {override /model: tiny}, {override /data: file}]
data: {path: capitals.csv, prompt: "What is the capital of {country}? Answer politely."}
rewards: {capital: {fn: ./rewards.py:capital}, polite: {fn: ./rewards.py:polite, weight: 0.5}}
END
  python - <<'END'
import json
SAID = [
    ("France", "Paris", "Paris, thank you for asking.", True), ("France", "Paris", "Paris.", True),
    ("France", "Paris", "Lyon, thank you.", False), ("Japan", "Tokyo", "It is Tokyo. Thank you!", True),
    ("Japan", "Tokyo", "Tokyo or Kyoto, please choose.", False), ("Japan", "Tokyo", "I do not know.", False),
    ("Peru", "Lima", "Lima", True), ("Peru", "Lima", "Please ask me something else.", False),
]
with open("answers.jsonl", "w") as file:
    for country, city, completion, good in SAID:
        row = {"prompt": f"What is the capital of {country}? Answer politely.", "completion": completion}
        file.write(json.dumps(row | {"city": city, "good": good}) + "\n")
END
}

# answers FILE: completions that gsm8k_grpo and toy_speakers can score
answers() {
  python - "$1" <<'END'
import json, sys
with open(sys.argv[1], "w") as file:
    for number in range(6):
        row = {"prompt": "Say a number each.", "completion": f"A: 3\nB: {number}", "answer": "#### 5"}
        file.write(json.dumps(row | {"speaker_a": "A", "speaker_b": "B"}) + "\n")
END
}
