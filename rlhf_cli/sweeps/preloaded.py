"""Import once what the jobs of a sweep need; each job is a fork of the process that imported this.

This module only imports, because an initialised device or a thread does not survive a fork.
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
