"""Makes `python -m benchmarks.x` import its siblings by name, if it is run in the root of the project.

The root is then importable too, which benchmarks need that start real programs with `tests.support`.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
