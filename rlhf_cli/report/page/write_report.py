"""Write the report of runs as one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.comparison.logged_run import LoggedRun, read_runs
from rlhf_cli.errors import Problems, RlhfError, UserError
from rlhf_cli.redaction import redacted
from rlhf_cli.report.page.embedding import deflated, own_file, plotly_bundle, policy, script_json, sha256
from rlhf_cli.report.page.page_content import PageContent, page_content
from rlhf_cli.runs.found_runs import runs_in
from rlhf_cli.runs.run_folder import RunFolder, write_text

NAME = "report.html"
"""File name of the report in the folder of its run or sweep."""

_SCRIPTS = ("state.js", "plots.js", "trade_offs.js", "completions.js", "start.js")


@dataclass(frozen=True)
class WrittenReport:
    """The location and size of a report. `left_out` lists the errors of folders that could not be read."""

    path: Path
    num_bytes: int
    runs: int
    settings: int
    plots: int
    completion_steps: int
    left_out: list[str]


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Write the report of the runs in these folders to `out` and return its path. A folder may be a run or hold runs.

    A sweep calls this at its end with its own folder. Raise RunError if no run can be read, OSError if `out` cannot be
    written.
    """
    found = {folder: None for place in folders for folder in runs_in(place)}
    runs, problems = read_runs(found)
    return report_on(runs, problems, out, title=title_of([place.resolve() for place in folders])).path


def report_at_the_end(folder: Path) -> str:
    """Write the report of a sweep or run into its folder and return a line that says where it is.

    If that fails, the line says why. No error is raised, because the training itself succeeded.
    """
    try:
        write_report([folder], folder / NAME)
        return f"report: {RunFolder(folder).shown}/{NAME}"
    except Exception as error:
        said = str(error).partition("\n")[0] or type(error).__name__
        return f"no report: {said}; rlhf report {RunFolder(folder).shown} tries again"


def report_on(runs: Sequence[LoggedRun], problems: Sequence[RlhfError], out: Path, *, title: str) -> WrittenReport:
    """Write the report of runs that were read together to `out`, including the problems of other folders.

    Raise the problems if there are no runs, OSError if `out` cannot be written.
    """
    if not runs:
        raise problems[0] if len(problems) == 1 else Problems([one for one in problems if isinstance(one, UserError)])
    content = page_content(runs, problems, title=title, out=out)
    html = render(content)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, html)
    settings, steps = content.comparison.grouped.settings, content.completions.num_steps
    return WrittenReport(out, len(html.encode()), len(runs), len(settings), len(content.plots), steps, content.problems)


def render(content: PageContent) -> str:
    """Return the page. jinja escapes every text; data for scripts is embedded as escaped JSON."""
    import jinja2
    from markupsafe import Markup

    def without_secrets(value: object) -> object:
        """Redact texts, except Markup: the hashes in the policy must stay intact."""
        return redacted(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rlhf_cli.report.page"),
        autoescape=True,
        finalize=without_secrets,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = '"use strict";\n' + "\n".join(own_file(name) for name in _SCRIPTS)
    bundle = plotly_bundle()
    return environment.get_template("page.html.jinja").render(
        page=content,
        policy=Markup(policy([sha256(f"\n{script}\n"), bundle.sha256])),
        css=Markup(own_file("page.css")),
        script=Markup(script),
        data=Markup(script_json(content.script_data())),
        curves=Markup(deflated(script_json(content.curve_data()))),
        plotly=Markup(bundle.base64),
    )


def title_of(folders: Sequence[Path]) -> str:
    """Return a page title: the last two parts of the first folder's path, and the number of other folders."""
    names = ["/".join(folder.parts[-2:]) for folder in folders]
    return "runs" if not names else names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
