"""Lets `python -m benchmarks.x`, run in the root of the project, import its siblings by name; nothing else is in here.

The root is then importable too, which those need that start real programs by means of `tests.support`.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
