"""rlhf audit +exp=NAME [overrides]     try degenerate answers on the rewards: thirteen kinds (empty, the prompt
                                     copied, many answers listed, orders to a judge ...) on real rows, scored by the
                                     experiment's own rewards, weights, gates and truncation policy. An answer that
                                     scores as much as the right one is shown, with the reward responsible and a fix.
                                     No model is trained (docs/how-to/scoring.md)

--limit N          number of rows (default 64; 8 if a reward asks a model, a server or a sandbox)
--kinds KIND ...   only these kinds; several may be joined by commas
--gold COLUMN      the column of right answers, or a text with {column} in it, as a policy should write it:
                   '<think>so</think><answer>{answer}</answer>'. By default, both are looked for
--strict           end with exit code 2 if there is a hole
--json             print one object: holes, kinds with totals and shares, advice
"""

from __future__ import annotations

import sys

from rlhf_cli.cli.options import Options
from rlhf_cli.cli.output import print_result
from rlhf_cli.display.audit_table import show_audit
from rlhf_cli.display.terminal import spinner
from rlhf_cli.errors import EXIT_OK, EXIT_USER_ERROR
from rlhf_cli.evaluation.audit.attack import attack_reachable, chosen_kinds, plan_of
from rlhf_cli.evaluation.audit.audit_result import with_advice
from rlhf_cli.plan.prepare import fill_in_policy, prepare


def run(options: Options) -> int:
    """Audit the rewards of an experiment, print the result and return the exit code."""
    kinds = chosen_kinds(options.texts("--kinds"))
    experiment = prepare(options.words, adjust=fill_in_policy).experiment
    plan = plan_of(experiment, kinds, limit=options.number("--limit"), gold=options.text("--gold"))
    if plan.cost is not None:
        print(plan.cost, file=sys.stderr)
    with spinner("scoring degenerate answers"):
        result = with_advice(attack_reachable(experiment, plan), experiment)
    print_result(options, result.as_json, lambda console: show_audit(console, result))
    return EXIT_USER_ERROR if options.on("--strict") and result.is_sound is False else EXIT_OK
