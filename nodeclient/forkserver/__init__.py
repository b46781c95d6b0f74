"""Warm workers: `--preload MODULES` forks them from one interpreter that has imported the modules already.

This parent interpreter is started with the user's own command line. At its start Python imports a module
`sitecustomize`, before it looks at the program. Ours, in `hook`, imports the modules, then waits for requests, and
forks a worker for each. The import of `sitecustomize` ends only in the fork. There Python goes on as always: it finds
`__main__`, sets `sys.path[0]`, and reads the script. So Python itself runs the program, and no code here imitates it.

`starter` starts workers, warm or cold. `server_process` is one parent interpreter with its forks, from the node's side.
`eligibility` decides which command lines allow warm workers. The files in `hook` run in the user's interpreter, with
the standard library alone, from Python 3.10 on.
"""
