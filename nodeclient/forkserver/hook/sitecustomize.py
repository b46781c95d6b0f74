"""Takes the place of the user's module of this name in the parent interpreter of `--preload`, and its control.

Python goes on with the user's program when this import is over. That must happen in a worker only, so any error here
ends the process.
"""

import os
import sys

before = frozenset(sys.modules)

try:
    from preload_parent import serve

    customized = serve(frozenset(sys.modules) - before)
except BaseException as error:  # noqa: BLE001 - see above
    try:
        os.write(2, ascii(f"nodeclient: --preload: {type(error).__name__}: {error}").encode() + b"\n")
    finally:
        os._exit(1)

if not customized:
    # Python raises this where there is no such module, and then it forgets this one.
    raise ImportError("this host has no sitecustomize", name="sitecustomize")
