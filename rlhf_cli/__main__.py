"""Run the command line as `python -m rlhf_cli`."""

import sys

from rlhf_cli.cli import main

sys.exit(main())
