"""Folders of images -> datasets: scan, plan, transform, write."""

from converters.convert import Conversion, Progress, convert

__all__ = ["Conversion", "Progress", "convert"]
