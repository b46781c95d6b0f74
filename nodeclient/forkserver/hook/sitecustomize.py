"""Replaces the user's module of this name, to control the parent interpreter of `--preload`.

Python runs the user's program after this import. That must happen only in a worker, so any error here ends the process.
"""

import os
import sys

before, path = frozenset(sys.modules), sys.path[:]

try:
    standard = os.path.dirname(os.__file__)  # noqa: PTH120 - see `coordinatord.runtime.own_python`
    sys.path.sort(key=lambda entry: entry != standard and not entry.endswith("lib-dynload"))
    from preload_parent import serve

    customized = serve(before, path)
except BaseException as error:  # noqa: BLE001 - see above
    try:
        os.write(2, ascii(f"nodeclient: --preload: {type(error).__name__}: {error}").encode() + b"\n")
    finally:
        os._exit(1)

if not customized:
    # Python itself raises this if there is no such module; it then removes this one from `sys.modules`.
    raise ImportError("this host has no sitecustomize", name="sitecustomize")
