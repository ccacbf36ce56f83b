"""One file a command. Each has `run(argv) -> exit code` and a docstring that is its help."""

VERBS = {
    "init": "a project of your own: an experiment, rewards with tests, data, README",
    "doctor": "what this machine has and lacks to train on, and what to type",
    "train": "compose, check, freeze and run an experiment; -m sweeps",
    "check": "everything that can be known before a run",
    "show": "the resolved configuration, with where each value came from",
    "list": "experiments, rewards, trainers, models, data: what there is",
    "audit": "attack the rewards before a training does: degenerate answers against the right ones",
    "score": "the rewards of an experiment on completions from a file",
    "eval": "a trained reward model or policy on rows it has not seen, with intervals",
    "generate": "n completions a prompt: best of n and its curve, preference pairs, answers worth training on",
    "compare": "runs side by side",
    "report": "one HTML page of runs: verdict, curves, front, completions; no network to open it",
    "why": "what was logged, read: what is wrong with a run, and what to change",
    "whatif": "what other weights or gates would have made of a run's stored rollouts",
    "verify": "whether runs have come to what their `expect:` says; exit code 1 where not",
    "reproduce": "run a run again: equal, or the first step and metric that differ, and why",
    "status": "what has become of runs: state, step, time left, Slurm's job",
    "join": "be one of the machines that train a run (launch.rdzv)",
    "resume": "go on with an interrupted run",
    "export": "a finished run as a model folder to give away: merged, with a card; --push",
    "sync": "send to wandb what runs recorded offline",
    "schema": "JSON Schema of the configuration, for editors",
    "completion": "a completion script for bash or zsh",
}
"""Verb -> one line for `rlhf --help`. The module of a verb is imported when it is called."""
