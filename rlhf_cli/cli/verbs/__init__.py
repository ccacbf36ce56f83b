"""One file per command. Each has `run(options) -> exit code`, and its docstring is the command's help."""

GROUPS = {
    "begin": {
        "init": "create a project: experiment, rewards with tests, data",
        "doctor": "what training needs and this machine lacks, and the fix",
        "list": "the experiments, rewards, trainers, models and data there are",
    },
    "before a run": {
        "check": "everything that can be checked before a run",
        "show": "the resolved configuration, with the origin of each value",
        "audit": "try degenerate answers on the rewards",
        "score": "score completions from a file with an experiment's rewards",
    },
    "run": {
        "train": "compose, check, freeze and run an experiment; -m sweeps",
        "resume": "continue an interrupted run",
        "status": "the state of runs: step, time left, Slurm job",
    },
    "after a run": {
        "compare": "runs side by side: means over seeds, a verdict in words",
        "report": "one HTML page of runs: verdict, curves, findings, answers",
        "why": "what is wrong with a run, by its log, and how to change it",
        "whatif": "a run's rollouts under other weights or gates",
        "eval": "a trained reward model or policy on unseen rows",
        "generate": "n completions per prompt: best of n, pairs, answers to train on",
        "verify": "whether runs met their `expect:`",
        "reproduce": "run a run again: equal, or the first difference and its causes",
    },
    "hand on": {
        "export": "a finished run as a model folder to publish, with its card",
        "sync": "send offline records of runs to wandb",
        "schema": "JSON Schema of the configuration, for editors",
        "completion": "a completion script for bash or zsh",
    },
}
"""Group -> verb -> its line in `rlhf --help`. A verb's module is imported when the verb is called."""

TEN = ("init", "list", "check", "train", "resume", "status", "compare", "report", "why", "eval")
"""The verbs that `rlhf --help` shows; `rlhf --help-all` shows all."""

VERBS = {verb: summary for verbs in GROUPS.values() for verb, summary in verbs.items()}
