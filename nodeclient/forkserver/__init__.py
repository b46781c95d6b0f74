"""Starts warm workers: `--preload MODULES` forks them from an interpreter that has already imported the modules.

This parent interpreter is started with the user's own command line. At its start Python imports a module
`sitecustomize`, before the program. Ours, in `hook`, imports the modules, waits for requests, and forks a worker for
each. The import of `sitecustomize` ends only in the fork. There Python continues as always: it finds `__main__`, sets
`sys.path[0]`, and reads the script. So Python itself runs the program, and no code here imitates it.

`starter` starts workers, warm or cold. `server_process` is one parent interpreter with its forks, on the node's side.
`eligibility` decides which command lines allow warm workers. The files in `hook` run in the user's interpreter, from
Python 3.10 on, and use only the standard library.
"""
