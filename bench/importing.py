"""What ``import fastdata`` costs: seconds, and which heavy packages it brings in.

python -m bench.importing [--rounds 15] [--json FILE]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

from bench.environment import environment
from bench.measure import save

_PROGRAM = """
import sys, time
started = time.perf_counter()
import fastdata
seconds = time.perf_counter() - started
print(seconds, *[name for name in ("torch", "cv2", "torchvision") if name in sys.modules])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="append the result to this file")
    arguments = parser.parse_args()
    machine, samples, heavy = environment(arguments), [], set()
    for _ in range(arguments.rounds):
        command = [sys.executable, "-c", _PROGRAM]
        seconds, *modules = subprocess.run(
            command, check=True, capture_output=True, text=True
        ).stdout.split()
        samples.append(float(seconds))
        heavy |= set(modules)
    print(
        f"import fastdata: median {statistics.median(samples):.3f} s, slowest {max(samples):.3f} s "
        f"(target 0.2 s); heavy packages imported: {', '.join(sorted(heavy)) or 'none'}"
    )
    save(arguments.json, machine, [{"title": "importing", "rows": {"seconds": samples}}])


if __name__ == "__main__":
    main()
