"""Seeding the generators that a user's code may draw from."""

from __future__ import annotations

import random

import numpy as np

__all__ = ["seed_generators"]


def seed_generators(key: int) -> None:
    """Seed Python's, numpy's and, where it is installed, torch's generator of the CPU.

    Args:
        key: 64 bits.
    """
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    try:
        import torch
    except ImportError:
        return
    torch.default_generator.manual_seed(key & 0x7FFFFFFFFFFFFFFF)
