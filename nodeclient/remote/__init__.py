"""`nodeclient up`: one terminal that starts and ends nodes on several hosts.

`bring_up` runs here, and has a link to each host. Such a link is an ssh that runs `far_end` on that host; for this host
it is `far_end` without an ssh. `link_messages` has the messages between the two ends. `far_end` becomes the node, or
brings up the coordinator. When its standard input ends or is silent, it takes `up` for gone, and ends: so
nothing stays on a host.
"""

UP_HOST = "up-host"
"""The only argument of `nodeclient` where `nodeclient up` starts it on a host. The node's come over standard input."""
