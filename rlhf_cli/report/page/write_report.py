"""Writes the report of runs: one HTML file that holds everything it shows."""

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
"""Names the report in the folder of its run or sweep."""

_SCRIPTS = ("state.js", "plots.js", "trade_offs.js", "completions.js", "start.js")


@dataclass(frozen=True)
class WrittenReport:
    """Says where a report lies and what it holds. `left_out` are the folders that could not be read, in words."""

    path: Path
    num_bytes: int
    runs: int
    settings: int
    plots: int
    completion_steps: int
    left_out: list[str]


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Write the report of the runs that these folders are, or hold, to `out`; returns where it lies.

    A sweep calls it at its end, with its own folder. Raises RunError where no run can be read, OSError where `out`
    cannot be written.
    """
    found = {folder: None for place in folders for folder in runs_in(place)}
    runs, problems = read_runs(found)
    return report_on(runs, problems, out, title=title_of([place.resolve() for place in folders])).path


def report_at_the_end(folder: Path) -> str:
    """Write the report of a sweep, or of a run, into its folder, and return a line that says where it is.

    Where that fails the line says why: what was trained is no less trained for it, so nothing is raised.
    """
    try:
        write_report([folder], folder / NAME)
        return f"report: {RunFolder(folder).shown}/{NAME}"
    except Exception as error:
        said = str(error).partition("\n")[0] or type(error).__name__
        return f"no report: {said}; rlhf report {RunFolder(folder).shown} tries again"


def report_on(runs: Sequence[LoggedRun], problems: Sequence[RlhfError], out: Path, *, title: str) -> WrittenReport:
    """Write the report of runs that were read together, and of what is wrong with others, to `out`.

    Raises the problems where there is no run, OSError where `out` cannot be written.
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
    """Return the page. jinja escapes every text; data for scripts stand in it as JSON that ends no element."""
    import jinja2
    from markupsafe import Markup

    def without_secrets(value: object) -> object:
        """Redact what is not ours; a hash of the policy has to stay what it is."""
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
    """Return what a page of these folders is called: the experiment and the run or sweep, by their folders."""
    names = ["/".join(folder.parts[-2:]) for folder in folders]
    return "runs" if not names else names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
