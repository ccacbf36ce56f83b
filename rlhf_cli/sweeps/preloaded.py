"""What the jobs of a sweep need, imported once: each job is a fork of the process that has imported this.

It imports and does nothing else: a device that is in use, and a thread, do not survive a fork.
"""

import rlhf_cli.assemble.trainer
import rlhf_cli.jobs.one_run
import rlhf_cli.launch.bounded_growth
import rlhf_cli.launch.callbacks
import rlhf_cli.launch.completion_ends
import rlhf_cli.launch.local
import rlhf_cli.launch.mirror_callback
import rlhf_cli.launch.pulse_callback
import rlhf_cli.launch.stop_between_steps
import rlhf_cli.launch.worker  # noqa: F401
