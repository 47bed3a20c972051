"""One measurement of bench.run, in a process of its own; prints a line of JSON.

python -m bench.run_one convert SRC DST FORMAT RESIZE SIZE WORKERS
python -m bench.run_one load warm|cold PLACE ENGINE DEVICE BATCH WORKERS SECONDS
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from bench.peers.common import measured_rate
from bench.watch import Memory

_BEGAN = time.perf_counter()


def main() -> None:
    what, *words = sys.argv[1:]
    with Memory() as memory:
        made = _convert(*words) if what == "convert" else _load(*words)
    print(json.dumps(made | {"peak_memory": memory.peak}))


def _convert(src: str, dst: str, to: str, resize: str, size: str, workers: str) -> dict[str, Any]:
    from fastdata import convert

    shape = {"size": int(size)} if to == "memmap" else {"resize": int(resize) or None}
    started = time.perf_counter()
    conversion = convert(src, dst, to=to, workers=int(workers), **shape)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "bytes": conversion.bytes, "images": conversion.samples}


def _load(
    cache: str, place: str, engine: str, device: str, batch: str, workers: str, seconds: str
) -> dict[str, Any]:
    from fastdata import FastdataError, make_loader

    imported = time.perf_counter()
    try:
        loader = make_loader(
            place,
            int(batch),
            recipe="imagenet-train",
            engine=engine,
            device=device,
            num_workers=int(workers),
            dtype="uint8",
        )
    except FastdataError as error:
        raise SystemExit(f"unable: {error}") from None
    made = time.perf_counter()
    result = {
        "images": len(loader.dataset),
        "engine": loader.engine,
        "import_seconds": imported - _BEGAN,
        "start_seconds": made - imported,
    }
    if cache == "cold":
        started = time.perf_counter()
        count = sum(_images(loader, float(seconds)))
        result |= {"rate": count / (time.perf_counter() - started), "loaded": count}
    else:
        first, cpu, rate = measured_rate(lambda: loader, float(seconds))
        result |= {
            "first_batch_seconds": first - made,
            "cpu_seconds_per_1000": cpu / 10,
            "rate": rate,
        }
    loader.close()
    return result


def _images(loader: Any, seconds: float) -> Iterator[int]:
    """Images of the batches of one epoch, or of as much of it as the time allows."""
    started = time.perf_counter()
    for pixels, *_ in loader:
        yield len(pixels)
        if time.perf_counter() - started > seconds:
            return


if __name__ == "__main__":
    main()
