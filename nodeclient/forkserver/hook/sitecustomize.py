"""Replaces the user's module of this name, to control the parent interpreter of `--preload`.

After this import, Python runs the user's program. Only a worker may do so: `serve` returns only there, and any error
ends the process.
"""

import os
import sys

modules_before, path = frozenset(sys.modules), sys.path[:]  # for `serve`: the state that Python has without this hook

try:
    standard = os.path.dirname(os.__file__)  # noqa: PTH120 - see `coordinatord.runtime.own_python`
    # The standard library comes first: see `own_python.prefer_standard_library`.
    sys.path.sort(key=lambda entry: entry != standard and not entry.endswith("lib-dynload"))
    from preload_parent import serve

    user_has_one = serve(modules_before, path)
except BaseException as error:  # noqa: BLE001 - see above
    try:
        os.write(2, ascii(f"nodeclient: --preload: {type(error).__name__}: {error}").encode() + b"\n")
    finally:
        os._exit(1)

if not user_has_one:
    # Python raises the same error if there is no such module. It then removes this module from `sys.modules`.
    raise ImportError("this host has no sitecustomize", name="sitecustomize")
