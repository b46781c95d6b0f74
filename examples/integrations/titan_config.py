"""torchtitan: the debug model with a trainer that reports its steps and saves before a planned stop.

    nodeclient join --standalone --nproc-per-node gpu -- python -m torchtitan.train --module titan_config --config debug

Start it in the folder of this module, or with that in PYTHONPATH. For another model, wrap its function in the same way.
"""

from __future__ import annotations

from torchtitan.models.llama3.config_registry import llama3_debugmodel

from workerlib.integrations.torchtitan import ElasticTrainer, elastic


def debug() -> ElasticTrainer.Config:
    """Return the configuration of torchtitan."""
    return elastic(llama3_debugmodel())
