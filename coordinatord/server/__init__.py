"""The shell of the coordinator: sockets, timers and logs around the pure machine in `core`.

`driver` is the only one who calls the machine; `sessions` carries nodes' messages to it and its answers back; `api`
answers everybody else; `app` puts them together on one port. Nothing here decides anything about a job.
"""
