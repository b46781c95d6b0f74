"""The table of the NVIDIA driver's errors (Xid) that are the fault of a node, and of no script. Pure.

The source is NVIDIA's catalogue, https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html: after these
errors the GPU is to be reset, or the node to be examined. After others the application is to be restarted.
"""

from __future__ import annotations

OF_THE_NODE = {
    48: "an uncorrectable (double bit) memory error",
    63: "a row of the memory was remapped",
    64: "a row of the memory could not be remapped",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    95: "an uncorrectable memory error, not contained",
    119: "the GPU's system processor (GSP) does not answer",
    120: "an error of the GPU's system processor (GSP)",
}
