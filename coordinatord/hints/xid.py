"""The table of the NVIDIA driver's errors (Xid) that tell whose fault a failure is. Pure.

The source is NVIDIA's catalogue, https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html: an error after
which the application is to be restarted is the program's own. One after which the GPU is to be reset, or the node to be
examined, is the node's. Errors that are not in the table tell nothing.
"""

from __future__ import annotations

OF_THE_PROGRAM = {
    13: "an illegal instruction or address in a kernel",
    31: "an access to memory that is not mapped",
    43: "the GPU stopped processing after an error of the program",
    94: "an uncorrectable memory error, contained to the program",
}

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
