"""The suite on other versions of Python and torch than the ones that development is pinned to.

`__main__` is the command line, `matrix` says which versions, `interpreters` finds or fetches a Python, `environments`
installs and runs. `make compat` runs all of it. CI runs `--cheap`: the newest Python of the machine, without torch.
"""
