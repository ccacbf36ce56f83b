"""One file a command. Each has `run(argv) -> exit code` and a docstring that is its help."""

GROUPS = {
    "begin": {
        "init": "a project of your own: experiment, rewards with tests, data",
        "doctor": "what this machine has and lacks to train on, and what to type",
        "list": "experiments, rewards, trainers, models, data: what there is",
    },
    "before a run": {
        "check": "everything that can be known before a run",
        "show": "the resolved configuration, with where each value came from",
        "audit": "attack the rewards before a training does",
        "score": "the rewards of an experiment on completions from a file",
    },
    "run": {
        "train": "compose, check, freeze and run an experiment; -m sweeps",
        "resume": "go on with an interrupted run",
        "status": "what has become of runs: state, step, time left, Slurm's job",
        "join": "be one of the machines that train a run (launch.rdzv)",
    },
    "after a run": {
        "compare": "runs side by side: means over seeds, a verdict in words",
        "report": "one HTML page of runs: verdict, curves, front, completions",
        "why": "what is wrong with a run, by its log, and what to change",
        "whatif": "what other weights or gates would have made of a run",
        "eval": "a trained reward model or policy on rows it has not seen",
        "generate": "n completions a prompt: best of n, pairs, answers to train on",
        "verify": "whether runs came to what their `expect:` says",
        "reproduce": "run a run again: equal, or what differs first, and why",
    },
    "hand on": {
        "export": "a finished run as a model folder to give away, with its card",
        "sync": "send to wandb what runs recorded offline",
        "schema": "JSON Schema of the configuration, for editors",
        "completion": "a completion script for bash or zsh",
    },
}
"""What one is about -> verb -> one line for `rlhf --help`. The module of a verb is imported when it is called."""

TEN = ("init", "list", "check", "train", "resume", "status", "compare", "report", "why", "eval")
"""What `rlhf --help` shows; `rlhf --help-all` shows every verb."""

VERBS = {verb: summary for verbs in GROUPS.values() for verb, summary in verbs.items()}
