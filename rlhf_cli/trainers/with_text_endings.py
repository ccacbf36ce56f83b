"""Save with a reward model how its training texts ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf_cli.runs.text_endings import write_text_endings
from rlhf_cli.trainers.additions import Additions
from rlhf_cli.trainers.trl_protocol import TrlTrainer


class WithTextEndings(TrlTrainer):
    """For a TRL trainer of reward models: write `additions.ends_with_eos` beside all weights it saves."""

    additions: Additions

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        # transformers calls this on every rank, but only the rank that writes creates the folder
        if not self.args.should_save:
            return
        with_eos = self.additions.ends_with_eos
        assert with_eos is not None
        write_text_endings(Path(output_dir or self.args.output_dir), with_eos=with_eos)
