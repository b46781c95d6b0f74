"""What is known of why training programs fail, and what to say of it: on a terminal, on the page, to programs. Pure.

`find` looks for the cause of a failure in tables of well-known ones, the modules whose names end in `_causes`. `words`
says what else happened in the round. Which failure came first is decided in `core`; what the failing worker's host
knows of it is found out by nodeclient.
"""
