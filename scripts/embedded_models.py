"""Make the shipped models in rlhf_cli/models/embedded, one per `build` of conf/model, and print their hashes.

usage: embedded_models.py [FOLDER]

Another processor makes other weights from the same recipe, so they are made once: new weights change the results of
every seeded run on them, and the studies and the numbers in docs must then be measured again. tests/models/test_tiny.py
holds the hashes.
"""

import json
import shutil
import sys
from functools import partial
from pathlib import Path

from rlhf_cli.models.tiny import EMBEDDED, RECIPE_FILE, build_tiny_model
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.runs.provenance import sha256
from rlhf_cli.trainers.assemble.policy_loading import warm_start_rows

CHOICES = ("tiny", "tiny_calls", "tiny_speakers", "tiny_untrained")


def show(step: int, steps: int) -> None:
    """Print the progress of the warm start."""
    if step % 100 == 0:
        print(f"warm start: {step} of {steps} steps", file=sys.stderr)


place = Path(sys.argv[1]) if len(sys.argv) > 1 else EMBEDDED
for choice in CHOICES:
    build = prepare(["+exp=quickstart", f"model={choice}"]).experiment.model.build
    assert build is not None
    folder = place / choice
    shutil.rmtree(folder, ignore_errors=True)
    recipe = build.model_dump()
    build_tiny_model(recipe, partial(warm_start_rows, build), show, folder)
    (folder / RECIPE_FILE).write_text(json.dumps(recipe, indent=2) + "\n", encoding="utf-8")
    (folder / "model.safetensors").chmod(0o644)  # a package must be readable by all users
    print(choice, sha256(folder / "model.safetensors"))
