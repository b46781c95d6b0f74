"""Callbacks for frameworks with a training loop of their own: they report steps, and save before a planned stop.

`lightning` and `transformers` have a callback each, and `torchtitan` a trainer. Each module imports the library of the
same name, so this package imports none of them. docs/integrations.md has the lines that a script needs.
"""
