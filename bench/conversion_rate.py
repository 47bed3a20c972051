"""What one process can do at most; prints images/s.

python -m bench.conversion_rate decode|encode SRC COUNT SECONDS
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import cv2
import simplejpeg


def main() -> None:
    what, src, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    seconds = float(sys.argv[4])
    cv2.setNumThreads(0)
    paths = [path for path in sorted(src.rglob("*")) if path.is_file()]
    step = max(1, len(paths) // count)
    images = [path.read_bytes() for path in paths[::step]]
    work = {"decode": simplejpeg.decode_jpeg, "encode": _encode}[what]
    work(images[0])
    done, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        for data in images:
            work(data)
        done += len(images)
    print(done / (time.perf_counter() - started))


def _encode(data: bytes) -> bytes:
    pixels = simplejpeg.decode_jpeg(data)
    height, width = pixels.shape[:2]
    scale = 256 / min(height, width)
    if scale < 1:
        size = (max(256, int(width * scale)), max(256, int(height * scale)))
        pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    return simplejpeg.encode_jpeg(pixels, 90, colorsubsampling="420")


if __name__ == "__main__":
    main()
