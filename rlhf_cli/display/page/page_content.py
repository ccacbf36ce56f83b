"""Gather what the page shows, and write it as one HTML file.

A Content-Security-Policy allows only scripts with the hashes of our own and forbids every request. Text from a model, a
data set or a configuration is data: jinja escapes it in the HTML, and `script_json` escapes it in JSON, so that neither
`</script>` nor `<!--` can end the element that holds it. Scripts of the page set texts, never HTML.

plotly's package has one bundle of 4.8 MB and no partial one. Deflated and in base64 it is 2 MB; the browser inflates it
(DecompressionStream: Chrome 80, Safari 16.4, Firefox 113). The curves are compressed the same way.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import itertools
import json
import re
import time
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rlhf_cli.analysis.comparison.comparison import Comparison, compare
from rlhf_cli.analysis.comparison.logged_run import LoggedRun, read_runs
from rlhf_cli.analysis.comparison.measures import RunMeasure
from rlhf_cli.analysis.diagnosis.logged import SEVERITIES
from rlhf_cli.analysis.diagnosis.run_diagnosis import diagnose_readable
from rlhf_cli.display.comparison_tables import estimate_texts
from rlhf_cli.display.page.page_data import completion_pages, plots_of, plotted_metrics
from rlhf_cli.errors import UserError, raise_any
from rlhf_cli.plan.batches import count
from rlhf_cli.runs.run_folder import RunFolder, runs_in, write_text
from rlhf_cli.text.redaction import redacted, redacted_tree

_MOST_COLUMNS = 16


def _lead(comparison: Comparison) -> str:
    runs, settings = comparison.runs, comparison.grouped.settings
    states = Counter(run.state for run in runs)
    trainers = ", ".join(dict.fromkeys(run.trainer for run in runs))
    parts = [count(len(runs), "run")]
    parts += [f"{len(settings)} settings"] if len(settings) > 1 else []
    parts.append(", ".join(f"{number} {state}" if len(states) > 1 else state for state, number in states.items()))
    return " · ".join([*parts, trainers, time.strftime("written %Y-%m-%d %H:%M %Z").strip()])


def _setting_lines(comparison: Comparison, measures: Sequence[RunMeasure]) -> list[dict[str, Any]]:
    """Return a row of the table for each setting. A setting of one run with a shorter name has that name."""
    settings, lines = comparison.grouped.settings, []
    of = [[comparison.estimates[setting.name][measure.label] for setting in settings] for measure in measures]
    columns = list(map(estimate_texts, of))
    for place, setting in enumerate(settings):
        names = [*(run.name for run in setting.runs), *setting.left_out]
        name = min(setting.name, names[0], key=len) if len(names) == 1 else setting.name
        cells = [texts[place] for texts in columns]
        lines.append({"name": name, "seeds": len(setting.by_seed), "cells": cells, "left_out": setting.left_out})
    return lines


NAME = "report.html"
_SCRIPTS = ("state.js", "plots.js", "completions.js", "start.js")


def report_at_the_end(folder: Path) -> str:
    """Write the report into the folder of a sweep or run, and return a line that says where it is, or why it failed."""
    try:
        report_on(*read_runs(runs_in(folder)), folder / NAME, folder)
        return f"report: {RunFolder(folder).shown}/{NAME}"
    except Exception as error:  # the training itself succeeded
        why = str(error).partition("\n")[0] or type(error).__name__
        return f"no report: {why}; rlhf report {RunFolder(folder).typed} tries again"


def report_on(runs: Sequence[LoggedRun], problems: Sequence[UserError], out: Path, folder: Path) -> dict[str, Any]:
    """Write the report of the runs in a folder to `out`, and return what `rlhf report --json` prints of it.

    Raise the problems if there are no runs, OSError if `out` cannot be written.
    """
    if not runs:
        raise_any(problems)
    comparison = compare(runs)
    settings, measures = comparison.grouped.settings, comparison.measures[:_MOST_COLUMNS]
    setting_of: dict[str, int] = {}
    why_not: dict[str, str] = {}
    for number, setting in enumerate(settings):
        setting_of |= dict.fromkeys([*(run.name for run in setting.runs), *setting.left_out], number)
        why_not |= setting.left_out
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for place, run in enumerate(runs):
        for finding in diagnose_readable(run.folder).diagnosis.findings if run.folder is not None else ():
            change, reason = (finding.changes[0].words, finding.changes[0].reason) if finding.changes else ("", "")
            facts = {"severity": finding.severity, "says": finding.what, "change": change, "reason": reason, "runs": []}
            found.setdefault((finding.severity, finding.kind, finding.subject), facts)["runs"].append(place)
    content: dict[str, Any] = {
        "title": runs[0].name if len(runs) == 1 else "/".join(folder.resolve().parts[-2:]),
        "lead": _lead(comparison),
        "notes": [*comparison.notes, *([comparison.no_total] if comparison.no_total else [])],
        "comparison": comparison,
        "is_comparison": len(runs) > 1,
        "has_rewards": any(run.weights for run in runs),
        "measures": measures,
        "lines": _setting_lines(comparison, measures),
        "plots": plots_of(runs, settings, plotted_metrics(runs, no_total=comparison.no_total)),
        "noticed": sorted(found.values(), key=lambda one: (SEVERITIES.index(one["severity"]), -len(one["runs"]))),
        "completions": completion_pages(runs),
        "cards": [{"run": run, "setting": setting_of[run.name], "why_not": why_not.get(run.name)} for run in runs],
        "problems": [str(problem) for problem in problems],
    }
    html = _render(content).encode(errors="backslashreplace").decode()  # names of files may hold any byte
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, html)
    return {
        "num_bytes": len(html.encode()),
        "runs": len(runs),
        "settings": len(settings),
        "plots": len(content["plots"]),
        "completion_steps": content["completions"]["num_steps"],
        "left_out": [redacted(text) for text in content["problems"]],
    }


def _render(content: Mapping[str, Any]) -> str:
    """Return the page. jinja escapes every text; data for scripts is embedded as escaped JSON."""
    import jinja2
    from markupsafe import Markup

    def without_secrets(value: object) -> object:
        """Redact texts, except Markup: the hashes in the policy must stay intact."""
        return redacted(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rlhf_cli.display.page"),
        autoescape=True,
        finalize=without_secrets,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = '"use strict";\n' + "\n".join(_own_file(name) for name in _SCRIPTS)
    plotly, plotly_hash = _plotly_bundle()
    colours = itertools.cycle(zip(_LIGHT, _DARK, strict=True))  # beyond eight settings they repeat
    texts: dict[str, object] = {
        "settings": [{"name": line["name"], "colours": next(colours)} for line in content["lines"]],
        "runs": [{"name": card["run"].name, "setting": card["setting"]} for card in content["cards"]],
        "completions": content["completions"]["steps"],
    }
    return environment.get_template("page.html.jinja").render(
        page=content,
        policy=Markup(_POLICY.format(_sha256(f"\n{script}\n"), plotly_hash)),
        css=Markup(_own_file("page.css")),
        script=Markup(script),
        data=Markup(script_json(redacted_tree(texts, values_only=True))),
        curves=Markup(_deflated(script_json(content["plots"]))),
        plotly=Markup(plotly),
    )


def script_json(content: object) -> str:
    """Return JSON that is safe inside a `<script>` element for any content.

    `<`, `>`, `&` and the line separators U+2028 and U+2029, which older JavaScript does not allow in strings, are
    written as escapes; JSON.parse undoes them. Raise ValueError for NaN and infinity, which JSON does not have.
    """
    plain = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    plain = re.sub("[<>&\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", plain)
    return plain.encode("utf-8", errors="replace").decode("utf-8")  # a lone surrogate cannot be encoded as UTF-8


def _deflated(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode(), 6)).decode()


_POLICY = (
    "default-src 'none'; script-src 'sha256-{}' 'sha256-{}'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
"""Allow only scripts with these hashes, and load nothing. plotly sets styles on elements and adds a style sheet."""


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def _plotly_bundle() -> tuple[str, str]:
    """Return plotly's script from the installed package, deflated and in base64, and the hash of the original."""
    script = importlib.resources.files("plotly").joinpath("package_data/plotly.min.js").read_text(encoding="utf-8")
    return _deflated(script), _sha256(script)


def _own_file(name: str) -> str:
    folder = importlib.resources.files("rlhf_cli.display.page").joinpath("static")
    return folder.joinpath(name).read_text(encoding="utf-8")


_LIGHT = ("#2563a8", "#c2570c", "#2f7d4f", "#8a4fa3", "#b3374a", "#6b6400", "#0f7c88", "#7a5233")
_DARK = ("#74aef0", "#f2a25c", "#6cc48c", "#cf9ee6", "#f28b99", "#cfc653", "#55c6d2", "#cda57c")
