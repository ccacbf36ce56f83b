"""Make the models that are shipped in rlhf_cli/models/embedded, one for each `build` of conf/model, and print hashes.

usage: embedded_models.py [FOLDER]

Another processor makes other weights of the same recipe. So they are made once: who makes them again changes what every
seeded run on them gives, and has to run the studies in docs/reference/studies and the numbers in docs again. The hashes
are held by tests/models/test_tiny.py.
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

CHOICES = ("tiny", "tiny_speakers", "tiny_untrained")


def show(step: int, steps: int) -> None:
    """Print how far the warm start is."""
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
    (folder / "model.safetensors").chmod(0o644)  # written for its owner alone, and is to be read from a package
    print(choice, sha256(folder / "model.safetensors"))
