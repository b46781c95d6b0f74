"""Warm workers: `--preload MODULES` forks them from one interpreter that has imported the modules already.

This parent interpreter is started with the user's own command line. At its start Python imports a module
`sitecustomize`, before it looks at the program. Ours, in `hook`, imports the modules and then waits. It forks each
worker. Only in the fork does the import of `sitecustomize` end. There Python goes on as always: it finds `__main__`,
sets `sys.path[0]`, reads the script. So there is no second way to run a program here.

`starter` starts workers, warm or cold. `server_process` is one life of the interpreter, as the node sees it.
`eligibility` decides which command lines allow warm workers. The files in `hook` run in the user's interpreter, with
the standard library alone, from Python 3.10 on.
"""
