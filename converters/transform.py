"""One record -> one sample: its own bytes where they serve, else new ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from converters.augment import Augmentation, load_augmentation, variant_key
from converters.entropy import check_entropy, without_padding
from converters.options import Options
from converters.policy import NO_END, Verdict, judge
from fastdata.decode import Decode, PixelBuffer, reduced, upright
from fastdata.decode.pillow import decode_unusual, to_rgb
from fastdata.errors import ImageError, UsageError
from fastdata.formats import Label, Sample
from fastdata.header import MAX_PIXELS
from fastdata.registry import DECODERS, DEFAULT_DECODER, WRITERS, load
from fastdata.seeding import seed_generators

__all__ = ["Transform", "scaled_size"]

Pixels = NDArray[np.uint8]

_CHECK_REDUCTION = 8
_SUBSAMPLING = "420"  # of what is encoded anew: a camera's, and what GPU decoders are built for


class Transform:
    """Turns records into samples as the options say; keeps one buffer between calls."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._encoded: bool = load(WRITERS, options.to, "format").encoded
        self._decode: Decode = load(DECODERS, DEFAULT_DECODER, "decoder")
        self._buffer = PixelBuffer()
        self._augment: Augmentation | None = None
        if options.augment is not None:
            self._augment = load_augmentation(options.augment, options.size)

    def __call__(
        self,
        record: bytes | Pixels,
        name: str,
        position: int,
        path: bytes,
        label: Label,
        copy: int = 0,
    ) -> Sample:
        """Make a sample.

        Args:
            record: an encoded image, or pixels, uint8 [H, W, 3].
            name: what to call it in a message.
            position: its place in the plan.
            path: of the source.
            label: of the sample.
            copy: which variant of its source it is.

        Raises:
            ImageError: the record is no whole image, or needs repair and ``strict`` forbids that.
            UsageError: the user's augmentation failed.
        """
        sample = Sample(position, path, label, 0, 0, copy=copy)
        try:
            if isinstance(record, bytes):
                return self._from_bytes(record, sample, name)
            return self._finish(record, sample, name)
        except (ValueError, cv2.error) as error:
            if isinstance(error, UsageError):
                raise
            raise ImageError(name, str(error)) from error

    def _from_bytes(self, data: bytes, sample: Sample, name: str) -> Sample:
        options = self._options
        verdict = judge(data, exif=options.exif == "apply")
        size = verdict.header.width, verdict.header.height
        keeps = verdict.keep and self._encoded and self._augment is None
        if keeps and self._target(*size) == size:
            if options.check == "decode" or verdict.repaired:
                verdict = self._checked(verdict)
            sample = _noted(sample, verdict)._replace(
                width=size[0], height=size[1], data=verdict.data
            )
        else:
            verdict, pixels = self._pixels(verdict)
            sample = self._finish(pixels, _noted(sample, verdict), name)
        if options.strict and sample.repaired:
            raise ValueError(f"{', '.join(sample.repaired)}; --strict takes no repaired image")
        return sample

    def _checked(self, verdict: Verdict) -> Verdict:
        """Decode every coefficient, which is where damage shows; at an eighth of the size what
        cannot fail (inverse DCT, colours) is spared."""
        size = verdict.header.stored_size
        small = self._buffer.shaped(*reduced(size, _CHECK_REDUCTION))
        return _mended(verdict, lambda data: self._decode(data, size, _CHECK_REDUCTION, small))

    def _pixels(self, verdict: Verdict) -> tuple[Verdict, Pixels]:
        """The upright pixels of an image."""
        header = verdict.header
        jpeg, size = header.structure, header.stored_size
        if header.decodable:
            pixels = self._buffer.shaped(*size)
            verdict = _mended(verdict, lambda data: self._decode(data, size, out=pixels))
        else:
            if jpeg is not None:
                verdict = _mended(verdict, lambda data: check_entropy(data, jpeg))
            pixels = decode_unusual(verdict.data)
        return verdict, upright(pixels, header.orientation)

    def _finish(self, pixels: Pixels, sample: Sample, name: str) -> Sample:
        """Augment, scale, and encode where the format takes encoded images."""
        treated = list(sample.treated)
        if self._augment is not None:
            pixels = self._augmented(pixels, sample, name)
            treated.append("augmented")
            try:
                return self._stored(pixels, sample, treated)
            except (ValueError, cv2.error) as error:
                raise UsageError(
                    f"--augment {self._options.augment}: what it made of {name} cannot be stored: "
                    f"{error}"
                ) from error
        return self._stored(pixels, sample, treated)

    def _stored(self, pixels: Pixels, sample: Sample, treated: list[str]) -> Sample:
        size = pixels.shape[1], pixels.shape[0]
        target = self._target(*size)
        if target != size:
            pixels = self._scale(pixels, target)
            treated.append("scaled")
        sample = sample._replace(width=target[0], height=target[1], treated=tuple(treated))
        if not self._encoded:
            return sample._replace(pixels=pixels)
        data = simplejpeg.encode_jpeg(
            np.ascontiguousarray(pixels), self._options.quality, colorsubsampling=_SUBSAMPLING
        )
        return sample._replace(data=data)

    def _augmented(self, pixels: Pixels, sample: Sample, name: str) -> Pixels:
        assert self._augment is not None
        seed_generators(variant_key(self._options.seed, sample.path, sample.copy))
        what = f"--augment {self._options.augment}"
        try:
            made: Any = self._augment(Image.fromarray(pixels))
        except Exception as error:
            raise UsageError(f"{what} failed on {name}: {type(error).__name__}: {error}") from error
        if isinstance(made, Image.Image):
            made = to_rgb(made)
        if not (
            isinstance(made, np.ndarray)
            and made.dtype == np.uint8
            and made.ndim == 3
            and made.shape[2] == 3
            and made.size
        ):
            kind = f"{made.dtype} {made.shape}" if isinstance(made, np.ndarray) else repr(made)
            raise UsageError(
                f"{what}: expected a PIL image or a uint8 array [H, W, 3], got {kind:.80} "
                f"for {name}"
            )
        return made

    def _target(self, width: int, height: int) -> tuple[int, int]:
        """Width and height of what is written."""
        options = self._options
        if options.size is not None:
            return options.size[1], options.size[0]
        if options.resize is not None and min(width, height) > options.resize:
            return scaled_size(width, height, options.resize)
        return width, height

    def _scale(self, pixels: Pixels, size: tuple[int, int]) -> Pixels:
        """Scale to cover ``size`` (width, height), then cut out the centre."""
        height, width = pixels.shape[:2]
        if self._options.size is None:
            covering = size
        else:
            # The side that needs the larger factor fits exactly, the other covers.
            fits_width = size[0] * height >= size[1] * width
            covering = (
                (size[0], max(size[1], size[0] * height // width))
                if fits_width
                else (max(size[0], size[1] * width // height), size[1])
            )
        if covering[0] * covering[1] > MAX_PIXELS:
            raise ValueError(
                f"scaled to cover {size[0]}x{size[1]}, its {width}x{height} pixels would become "
                f"{covering[0]}x{covering[1]}, more than can be a picture; crop it"
            )
        if covering != (width, height):
            shrinks = covering[0] < width or covering[1] < height
            # The mean over each output pixel's area: no aliasing, and done once, not per epoch.
            how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
            pixels = np.asarray(cv2.resize(pixels, covering, interpolation=how), np.uint8)
        left, top = (covering[0] - size[0]) // 2, (covering[1] - size[1]) // 2
        return pixels[top : top + size[1], left : left + size[0]]


def _mended(verdict: Verdict, decode: Callable[[bytes], object]) -> Verdict:
    """Decode a JPEG, and once more without what a decoder may harmlessly stumble over.

    Raises:
        ValueError: it is damaged.
    """
    try:
        decode(verdict.data)
        return verdict
    except ValueError as error:
        if NO_END in verdict.repaired:
            raise ValueError(f"truncated JPEG: {NO_END}, and more") from error
        shorter = without_padding(verdict.data, error)
        if shorter is None:
            raise
    decode(shorter)
    return replace(
        verdict, data=shorter, repaired=(*verdict.repaired, "zero bytes before the end marker")
    )


def _noted(sample: Sample, verdict: Verdict) -> Sample:
    return sample._replace(treated=verdict.treated, repaired=verdict.repaired)


def scaled_size(width: int, height: int, short: int) -> tuple[int, int]:
    """Width and height with the short side scaled to ``short``; the long one is truncated to
    whole pixels, as torchvision's Resize does."""
    if width <= height:
        return short, height * short // width
    return width * short // height, short
