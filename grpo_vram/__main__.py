"""`python -m grpo_vram COMMAND ...`, as the console script `grpo-vram`."""

import sys

from grpo_vram import main

sys.exit(main())
