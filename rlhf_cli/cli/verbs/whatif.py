"""rlhf whatif RUN key=value ...     totals, order and advantages of a run's stored rollouts under other weights, gates,
                                  aggregate, normalisation or truncation policy. No training

RUN is a run folder, or run:NAME. key=value changes the run's configuration: rewards.NAME.weight, gate, offset, clip,
normalize, on_error; aggregate, primary, truncation; trainer.args.scale_rewards, normalize_advantages,
reward_clip_range. Several words are one question; several values, rewards.NAME.weight=0,0.1,0.5, are a table of
questions. The first step is exact: any run with this seed starts with these rollouts (docs/how-to/scoring.md).

--trust          run an aggregate that the run names, even if another user made it
--json           print one object instead of tables
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict

from rlhf_cli.analysis.whatif_request import alternatives, ask, read_rounds
from rlhf_cli.cli.options import Options
from rlhf_cli.cli.output import print_json
from rlhf_cli.cli.run_arguments import one_named, run_at
from rlhf_cli.config.schema.reward_sections import AGGREGATES
from rlhf_cli.display.terminal import Screen, spinner, wide_console
from rlhf_cli.errors import EXIT_OK, RunError
from rlhf_cli.launch.freeze import refuse_foreign_code
from rlhf_cli.runs.run_status import newest_run, read_status
from rlhf_cli.text.json_values import section

_PIPE_WIDTH = 120


def run(options: Options) -> int:
    """Answer one question, or several, about one run, print the answers and return the exit code."""
    words = options.words
    expected = "a run folder, or run:NAME, and what would be different"
    newest, reward = newest_run(), "correct"
    with suppress(RunError):  # another run is named
        reward = next(iter(section(newest.read_config(), "rewards")), "NAME") if newest is not None else reward
    named = one_named(words, "rlhf whatif", expected, more=f" rewards.{reward}.weight=0.3")
    folder = run_at(named, [], where="rlhf whatif")
    questions = [ask(folder, typed) for typed in alternatives(words)]
    aggregates = {rule.aggregate for question in questions for rule in (question.old, question.new)}
    makers = [side.advantages for question in questions for side in (question.old, question.new)]
    if aggregates - set(AGGREGATES) or any(makers):  # a function of the user's, which answering runs
        refuse_foreign_code(folder, trust=options.on("--trust"), command=f"rlhf whatif {folder.typed}")
    stored = read_rounds(folder)

    with spinner("importing torch"):
        from rlhf_cli.analysis.what_if import what_if
    from rlhf_cli.display.run_tables import show_edited
    from rlhf_cli.display.whatif_tables import show_alternatives, show_what_if

    max_steps = read_status(folder).max_steps
    answers = [what_if(question, stored, max_steps) for question in questions]
    if options.as_json:
        print_json({"run": folder.shown, "questions": [asdict(answer) for answer in answers]})
    elif len(answers) == 1:
        show_what_if(wide_console(_PIPE_WIDTH), folder.shown, answers[0])
    else:
        show_alternatives(wide_console(_PIPE_WIDTH), folder.shown, answers)
    show_edited(Screen(stderr=True), [folder])
    return EXIT_OK
