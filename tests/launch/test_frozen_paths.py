"""A frozen run finds its local files from any folder, and keeps names that only look like them."""

from __future__ import annotations

from pathlib import Path

from rlhf_cli.launch.freeze import absolute_paths


def test_paths_are_frozen_with_their_suffix(place: Path) -> None:
    """The hub's cache holds links to files without one. A pattern and a function are looked up from any folder."""
    for name in ("blob", "own.py", "sum"):
        (place / name).write_text("")
    (place / "rows.jsonl").symlink_to("blob")
    for typed in ("rows.jsonl", "*.jsonl"):
        assert absolute_paths({"path": [typed, "a/b"]}) == {"path": [str(place / typed), "a/b"]}
    for key in ("fn", "class", "callbacks", "aggregate"):
        assert absolute_paths({key: "./own.py:f"}) == {key: f"{place}/own.py:f"}
    assert absolute_paths({"aggregate": "sum"}) == {"aggregate": "sum"}


def test_what_a_server_calls_its_model_is_no_path(place: Path) -> None:
    """`hf download --local-dir Qwen/X` makes a folder of that name beside the server that serves it."""
    (place / "Qwen" / "X").mkdir(parents=True)
    for typed, frozen in (("Qwen/X", "Qwen/X"), ("./Qwen/X", f"{place}/Qwen/X"), (None, None)):
        judge = {"args": {"model": typed, "path": "Qwen/X"}, "model": "Qwen/X"}
        assert absolute_paths({"rewards": {"j": judge}}) == {
            "rewards": {"j": {"args": {"model": frozen, "path": f"{place}/Qwen/X"}, "model": f"{place}/Qwen/X"}}
        }
