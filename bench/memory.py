"""What converting one image takes of a worker's memory, beside the bound that is promised.

    python -m bench.memory [--megapixels 100] [--json FILE]

For each kind of file one image of that size is converted in a process of its own, and the process's
peak is compared with twice the decoded image plus 150 MB. A header that claims 2 gigapixels is to
cost nothing.
"""

from __future__ import annotations

import argparse
import io
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.environment import environment
from bench.measure import save

_MARGIN = 150_000_000
_KINDS: dict[str, dict[str, Any]] = {
    "baseline JPEG": {"format": "JPEG", "subsampling": 2},
    "baseline JPEG 4:4:4": {"format": "JPEG", "subsampling": 0},
    "baseline JPEG, turned": {"format": "JPEG", "subsampling": 2, "turned": True},
    "progressive JPEG": {"format": "JPEG", "subsampling": 2, "progressive": True},
    "progressive JPEG 4:4:4": {"format": "JPEG", "subsampling": 0, "progressive": True},
    "PNG": {"format": "PNG", "compress_level": 1},
    "PNG with alpha": {"format": "PNG", "compress_level": 1, "mode": "RGBA"},
    "TIFF": {"format": "TIFF"},
    "a header of 2 gigapixels": {"format": "claim"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megapixels", type=float, default=100)
    parser.add_argument("--json", type=Path, help="append the result to this file")
    parser.add_argument("--convert", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.convert is not None:
        _convert(arguments.convert)
        return
    machine, rows = environment(arguments), {}
    side = int(math.sqrt(arguments.megapixels * 1e6))
    idle = 0
    with tempfile.TemporaryDirectory(prefix="bench-memory-") as scratch:
        for name, options in {"nothing": {"format": "nothing"}, **_KINDS}.items():
            path = Path(scratch) / "image"
            path.write_bytes(_encoded(side, **options))
            command = [sys.executable, "-m", "bench.memory", "--convert", str(path)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            peak = int(done.stdout.split()[-1])
            idle = idle or peak
            claims = options["format"] in ("claim", "nothing")
            bound = idle + 10_000_000 if claims else 2 * 3 * side * side + _MARGIN
            rows[name] = {"peak": peak, "bound": bound, "ratio": peak / bound}
            print(f"  {name:26} {peak / 1e6:7.0f} MB of {bound / 1e6:5.0f}: {peak / bound:.2f}")
    save(arguments.json, machine, [{"title": f"memory, {side}x{side} pixels", "rows": rows}])


def _encoded(
    side: int, format: str, mode: str = "RGB", turned: bool = False, **options: Any
) -> bytes:
    from PIL import Image

    if format == "nothing":
        return b""
    image = Image.linear_gradient("L").resize((16, 16)).convert(mode)
    if format == "claim":
        data = _encoded(16, "JPEG")
        at = data.index(b"\xff\xc0") + 5
        return data[:at] + (44_721).to_bytes(2, "big") * 2 + data[at + 4 :]
    if turned:
        exif = Image.Exif()
        exif[0x0112] = 6
        options["exif"] = exif
    buffer = io.BytesIO()
    image.resize((side, side)).save(buffer, format, **options)
    return buffer.getvalue()


def _convert(path: Path) -> None:
    """Convert one file as a worker does, and print this process's peak in bytes."""
    from converters.options import Options
    from converters.transform import Transform
    from fastdata.errors import ImageError
    from fastdata.machine import keep_freed_memory

    keep_freed_memory()
    transform = Transform(Options("webdataset", resize=256))
    try:
        transform(path.read_bytes(), "image", 0, b"image", 0)
    except ImageError as error:
        print(error, file=sys.stderr)
    # The high-water mark of this program alone: ru_maxrss counts what forked it, too.
    status = Path("/proc/self/status").read_text()
    print(int(status.split("VmHWM:")[1].split()[0]) * 1024)


if __name__ == "__main__":
    main()
