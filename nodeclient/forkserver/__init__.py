"""Starts warm workers: `--preload MODULES` forks them from an interpreter that has already imported the modules.

To import torch takes seconds, which each new round would cost. A fork takes 10 to 20 ms. The *parent interpreter* is
started with the user's own command line. Every Python imports a module `sitecustomize` before it runs its program.
Ours, in `hook`, imports the user's modules, waits for requests, and forks a worker for each. The import of
`sitecustomize` ends only in a fork, where Python then continues as always: it finds `__main__`, sets `sys.path[0]`, and
runs the script. So no code here imitates the start of a program.

`starter` starts workers, warm or cold. `server_process` is one parent interpreter with its forks, on the node's side.
`nodeclient/workers/python_command` decides which command lines allow warm workers. The files in `hook` run in the
user's interpreter, from Python 3.10 on, and use only the standard library.
"""
