"""Run the command line: import the verb, run it and return an exit code.

Exit codes: 0 success, 2 the user's configuration or data is wrong, 1 a bug or a crash in user code, 75 preempted and
resumable, 141 stdout was closed early (`| head -1`), as for other shell commands.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import re
import shlex
import sys
import threading
from collections.abc import Mapping

import rlhf_cli
from rlhf_cli.cli import output
from rlhf_cli.cli.options import JSON, print_help, read_options, usage_of
from rlhf_cli.cli.verbs import GROUPS, TEN, VERBS
from rlhf_cli.errors import CTRL_C, EXIT_CRASH, EXIT_OK, Interrupted, Preempted, RewardFailed, RlhfError, UserError
from rlhf_cli.process import abandoned, into_nothing, lasting_output, leave, stopped_early
from rlhf_cli.text.redaction import OutputLost, forgetting, remember_typed, safe_output, traceback_of
from rlhf_cli.text.suggest import nearest

_HELP = """rlhf: describe an RLHF experiment in YAML, run it, sweep it, compare the runs.

usage: rlhf VERB [words]

{verbs}

  rlhf train +exp=quickstart                       half a minute, no download
  rlhf train +exp=quickstart seed=3                override it
  rlhf train -m +exp=quickstart 'seed=range(0,3)'  sweep it

rlhf VERB --help says more; {more}rlhf --version.
"""
_HELP_ALL = "--help-all"
_EXIT_UNREAD = 141
"""stdout was closed early: 128 plus the number of SIGPIPE, as shells report `ls | true`."""
_CALLING = f"{os.path.dirname(os.path.dirname(__file__))}{os.sep}rewards{os.sep}stack{os.sep}"
"""The folder whose code calls rewards."""
_LONG = ("train", "resume")
"""Verbs that continue after the reader of their output has gone."""


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code. `argv` holds the words after `rlhf`; None takes them from sys.argv."""
    words = sys.argv[1:] if argv is None else argv
    for name in ("stdout", "stderr"):  # a shell closed it (`>&-`): no later file may get its number
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  open until the process ends
    with forgetting(), safe_output():
        remember_typed(words)
        try:
            code = _dispatch(words)
        except BrokenPipeError:  # `rlhf list | head -1`; errors of other pipes do not get here
            code = _EXIT_UNREAD
        except OutputLost as error:
            code = _lost(error)
    if argv is None:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            into_nothing(sys.stdout)  # else Python flushes again at exit and complains
        except OSError as error:
            code = _lost(error)
        others = (thread for thread in threading.enumerate() if thread is not threading.current_thread())
        if all(thread.daemon or thread in abandoned for thread in others):
            leave(code)  # unloading 600 to 4000 modules takes as long as composing a config
    return code


def _lost(error: OSError) -> int:
    """Say that the output could not be written, as on a full disk; return the exit code."""
    into_nothing(sys.stdout)  # else Python flushes again at exit and fails
    with contextlib.suppress(OSError):  # stderr may be the same file
        output.print_error("error", f"the output cannot be written: {error.strerror}")
    return EXIT_CRASH


def _dispatch(words: list[str]) -> int:
    if len(words) > 1 and words[0] == "help":
        words = [words[1], "--help", *words[2:]]
    if not words or words[0] in ("-h", "--help", "help"):
        more = f"rlhf {_HELP_ALL} has {len(VERBS) - len(TEN)} more verbs; "
        print_help(_HELP.format(verbs=_lines({verb: VERBS[verb] for verb in TEN}), more=more))
        return EXIT_OK
    if words[0] == _HELP_ALL:
        verbs = "\n\n".join(f"{title}\n{_lines(of_group)}" for title, of_group in GROUPS.items())
        print_help(_HELP.format(verbs=verbs, more=""))
        return EXIT_OK
    if words[0] in ("-V", "--version"):
        print(f"rlhf {rlhf_cli.__version__}")
        return EXIT_OK
    verb, *rest = words
    if verb not in VERBS:
        unknown = UserError(f"there is no verb {verb!r}", hint=f"rlhf {shlex.join(_meant(verb, rest))}")
        output.print_problems(unknown, as_json=JSON in words)
        output.print_error("error", str(unknown))
        return unknown.exit_code
    usage = usage_of(verb)
    if any(word in ("-h", "--help") for word in rest):
        print_help(usage.text)
        return EXIT_OK
    with contextlib.ExitStack() as stack:
        if verb in _LONG:
            stack.enter_context(lasting_output())
        if JSON in rest and JSON in usage.flags:
            stack.enter_context(output.json_alone())
        return _run(verb, rest)


def _lines(verbs: Mapping[str, str]) -> str:
    return "\n".join(f"  {verb:<11} {what}" for verb, what in verbs.items())


def _meant(verb: str, rest: list[str]) -> list[str]:
    """Return the command that the user probably meant by an unknown verb and the words after it."""
    from rlhf_cli.tables.former_names import VERBS_OF_OTHERS  # needed only for a mistake

    if (meant := VERBS_OF_OTHERS.get(verb)) is not None and meant.split()[0] in (*VERBS, "--version"):
        return [*meant.split(), *rest]
    if (close := nearest(verb, VERBS)) is None:
        return ["--help"]
    is_whole = rest or re.match(rf"rlhf {close}( \[|  )", usage_of(close).text)
    return [close, *rest] if is_whole else [close, "--help"]


def _refused(error: RlhfError) -> int:
    output.print_problems(error)
    if isinstance(error, RewardFailed) and error.__cause__ is not None:
        # Cut our calling frames off, so that the traceback starts in the user's code.
        trace = theirs = error.__cause__.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename.startswith(_CALLING) and trace.tb_next is not None:
                theirs = trace.tb_next
            trace = trace.tb_next
        print(traceback_of(error.__cause__.with_traceback(theirs)), end="", file=sys.stderr)
    notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
    output.print_error("stopped" if isinstance(error, Preempted) else "error", f"{error}{notes}")
    return error.exit_code


def _run(verb: str, words: list[str]) -> int:
    try:
        encoding, names = sys.getfilesystemencoding(), (os.getcwd(), *words)
        named = next((name for name in names if not name.isascii()), None)
        if named is not None and encoding != "utf-8":  # in which pyarrow and torch read names
            what = "this locale writes names of files in another encoding than the libraries read"
            raise UserError(what, where=named, got=encoding, expected="utf-8", hint="export PYTHONUTF8=1")
        # Importing a verb is slow, and the user may press Ctrl-C during it.
        with stopped_early():
            module = importlib.import_module(f"rlhf_cli.cli.verbs.{verb}")
            if verb in _LONG:
                from rlhf_cli.plan.rank_group import has_launcher, starts_ranks

                if starts_ranks():
                    from rlhf_cli.launch.elastic import run_as_torchrun

                    with output.stdout_of_children():
                        return run_as_torchrun([verb, *words])
                if has_launcher():
                    from rlhf_cli.launch.group import run_in_group

                    return run_in_group(lambda leader: int(module.run(read_options(usage_of(verb), words), leader)))
            code: int = module.run(read_options(usage_of(verb), words))
    except RlhfError as error:
        output.complete_hints(error, verb, words)
        return _refused(error)
    except KeyboardInterrupt as interrupt:
        by = f" by {interrupt if isinstance(interrupt, Interrupted) else CTRL_C}"
        by += ": nothing was being trained" if verb in _LONG and not by.endswith(CTRL_C) else ""
        output.print_problems(Preempted(f"stopped{by}"))
        print(f"stopped{by}", file=sys.stderr)
        return Preempted.exit_code
    except SystemExit as left:
        if isinstance(left.__context__, BrokenPipeError) and verb not in _LONG:
            return _EXIT_UNREAD  # rich turns a broken pipe into exit code 1
        raise
    except OutputLost:
        raise
    except Exception as error:  # a bug here or in the user's reward: print the traceback
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            what, expected = "a name is too long for a file", "at most 255 bytes"
            return _refused(UserError(what, got=error.filename, expected=expected))
        if isinstance(error, FileNotFoundError) and error.filename is None:  # os.getcwd's, which names no file
            return _refused(UserError("the current folder does not exist any more", expected="cd FOLDER"))
        if isinstance(error, BrokenPipeError) and output.nobody_reads():
            raise
        output.print_problems(error)
        print(traceback_of(error), end="", file=sys.stderr)
        return EXIT_CRASH
    return code
