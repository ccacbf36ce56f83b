"""The built wheel, run from a folder that is not the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_has_all_data_files(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    wanted = {f"rlhf_cli/{path.relative_to(ROOT)}" for path in (ROOT / "conf").rglob("*.yaml")}
    assert {name for name in inside if name.startswith("rlhf_cli/conf/")} == wanted
    for pattern, least in (("models/embedded/**/*.*", 9), ("**/*.jinja", 7)):
        files = {str(path.relative_to(ROOT)) for path in (ROOT / "rlhf_cli").glob(pattern)}
        assert len(files) >= least
        assert files <= inside


def test_the_wheel_runs_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(pip, check=True, timeout=300)
    environment = {**os.environ, "PYTHONPATH": str(site)}

    def python(*words: str) -> str:
        command = [sys.executable, *words]
        done = subprocess.run(
            command, cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = python("-c", "from rlhf_cli.config.conf_folders import shipped_dir; print(shipped_dir())").strip()
    assert Path(where) == site / "rlhf_cli" / "conf"
    assert "quickstart" in python("-m", "rlhf_cli", "list", "exp")
    assert "frac_reward_zero_std" in python("-m", "rlhf_cli", "list", "metrics")
    assert "ok, nothing was written" in python("-m", "rlhf_cli", "check", "+exp=quickstart")
    assert "rlhf train +exp=first" in python("-m", "rlhf_cli", "init", str(tmp_path / "a project"))
    assert (tmp_path / "a project" / "data" / "sums.jsonl").is_file()
    assert list(elsewhere.iterdir()) == []
