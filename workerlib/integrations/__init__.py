"""What frameworks with a training loop of their own need to report steps, and to save before a planned stop.

`lightning` and `transformers` have a callback each, and `torchtitan` a trainer. A module imports the library that it is
named after, so that none is imported from here. docs/integrations.md has the lines that a script needs, also for
libraries that need none of these.
"""
