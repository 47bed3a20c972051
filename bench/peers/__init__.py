"""Contestants of bench.engines, a module each; ``python -m bench.peers.NAME`` runs one.

A module says what it is in constants, imports its library inside functions only, and needs nothing
of fastdata (but for ``ours``), so that it can run under a Python of its own:

    TITLES    row in the table -> extra words of the command line
    INSTALL   how to get the library
    SETS      set -> what the contestant does to an image there
    AHEAD     set -> why it may be ahead of fastdata there, where it is; optional
"""

PEERS = (
    "torchvision", "torchcodec", "webdataset", "litdata", "mosaicml", "huggingface", "spdl",
    "grain", "dali", "ffcv", "timm", "bound",
)  # fmt: skip
