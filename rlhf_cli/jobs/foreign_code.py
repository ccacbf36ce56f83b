"""Keep run folders made by others from running their code without the user's consent."""

from __future__ import annotations

from rlhf_cli.config.named_code import code_of
from rlhf_cli.errors import RunError
from rlhf_cli.runs.maker import is_made_by_us, made_by, maker_of
from rlhf_cli.runs.provenance import add_to_provenance
from rlhf_cli.runs.run_folder import RunFolder


def refuse_foreign_code(run: RunFolder, *, trust: bool, command: str) -> None:
    """Raise RunError, listing the code, if a run names code and was not made by this user.

    Does nothing with `trust`. `command` is the typed command, such as `rlhf resume RUN`.
    """
    code = code_of(run.read_config())
    if trust or not code or is_made_by_us(run, code):
        return
    raise RunError(
        "this run folder names code to run, and you are not known as the one who made it",
        where=str(run.config),
        got="\n".join([f"made by {maker_of(run)}", *code]),
        expected="a run of your own as it was frozen, or code that you have read and trust",
        hint=f"{command} --trust",
    )


def take_as_ours(run: RunFolder) -> None:
    """Mark a run as this user's own, after the user said to trust its code and resumes it."""
    code = code_of(run.read_config())
    if code and not is_made_by_us(run, code):
        add_to_provenance(run, made_by=made_by(code))
