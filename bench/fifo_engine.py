"""The engine with a scheduler that is first come, first served: what bench/arrivals.py compares with.

    python bench/fifo_engine.py ARGUMENTS OF python -m engine

No prompt passes an earlier one; ``--max-stall`` says how much of a prompt is read at once.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import engine.llm.waiting
from engine.__main__ import main

if __name__ == "__main__":
    engine.llm.waiting.STRETCH = 0.0  # a prompt is due when it arrives, whatever its length
    sys.exit(main())
