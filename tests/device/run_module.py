"""Run a module as `python -m` does, with what it trains on the pretended device.

    python -m tests.device.run_module rlhf_cli train +exp=quickstart trainer.args.dataloader_pin_memory=false

A caught violation ends in exit code 1, too, and so does a module that has nothing on the device.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from collections.abc import Iterator
from unittest.mock import patch

from tests.device.pretended_device import SEEN, pretended_device


@contextlib.contextmanager
def trained_on() -> Iterator[None]:
    """Have everything train and evaluate on the pretended device, in float32."""
    precision = {"use_cpu": False, "bf16": False, "fp16": False}
    with (
        pretended_device(),
        patch.dict(os.environ, ACCELERATE_TORCH_DEVICE="pretend:0"),
        patch("rlhf_cli.trainers.assemble.trl_config.precision_args", lambda _: precision),
        patch("rlhf_cli.evaluation.evaluation_run.device_of", lambda _: "pretend:0"),
    ):
        yield


def main() -> None:
    """Run the module that the first word names, with the other words."""
    del sys.argv[0]
    code: object = 0
    with trained_on():
        try:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            code = ended.code
    if SEEN.violations:
        raise SystemExit("violations on the pretended device:\n" + "\n".join(SEEN.violations))
    if not code and not SEEN.waits:
        raise SystemExit("nothing was done on the pretended device")
    raise SystemExit(code)


if __name__ == "__main__":
    main()
