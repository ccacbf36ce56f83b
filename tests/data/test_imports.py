"""`rlhf check` asks this room about data on machines, and in seconds, that have no room for torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "transformers", "datasets", "pandas", "pyarrow")


def heavy_after(code: str) -> list[str]:
    program = f"import sys\n{code}\nprint(*[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_everything_but_load_is_light_when_imported() -> None:
    room = ROOT / "rlhf_cli" / "data"
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sorted(room.rglob("*.py"))]
    light = [name.removesuffix(".__init__") for name in modules if name != "rlhf_cli.data.loading"]
    assert len(light) > 10
    assert heavy_after("import " + ", ".join(light)) == []


def test_and_stays_light_when_used(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("question,answer\nwhy,42\n")
    code = f"""
from rlhf_cli.data.peeking import column_names_after, first_rows, peek
from rlhf_cli.data.source import DataSource as Source
from rlhf_cli.data.template import render
found = peek(Source(path={str(tmp_path / "rows.csv")!r}))
assert column_names_after(found, {{}}, "Q: {{question}}") == ("question", "answer", "prompt")
assert render("Q: {{question}}", found.rows[0]) == "Q: why"
peek(Source(world="toy_sums"))
first_rows([Source(path={str(tmp_path / "rows.csv")!r})], prompt="{{question}}", transcripts=False, seed=0, limit=4)
"""
    assert heavy_after(code) == []


def test_negative_control_load_is_not_light() -> None:
    assert "datasets" in heavy_after("import rlhf_cli.data.loading")
