"""Warm workers: `--preload MODULES` has them forked from one interpreter that has imported the modules already.

The parent interpreter is started with the very command line of the user's. Python imports a module `sitecustomize` at
its start, before it so much as looks at the program; ours, in `hook`, imports the modules and then waits. For each
worker it forks, and only in the fork the import of `sitecustomize` ends, so that Python itself goes on as always: it
finds `__main__`, sets `sys.path[0]`, reads the script. No second way to run a program is made up here.

`starter` starts workers, warm or cold; `server_process` is one life of the interpreter as the node sees it;
`eligibility` tells which command lines allow it. In `hook` are the files that
run in the user's interpreter, with the standard library alone, from Python 3.10 on.
"""
