"""Run every benchmark on a few drawn images: that they run, not what they print.

python -m bench.smoke
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from fastdata.demo.images import write_folder


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="bench-smoke-") as scratch:
        source, result = Path(scratch) / "source", Path(scratch) / "result.jsonl"
        write_folder(source, 300)
        for module, *options in (
            ("bench.loading", "--rounds", "1", "--seconds", "0.2", "--sources", "s256,32x32"),
            ("bench.conversion", "--rounds", "1", "--gigabytes", "0.01"),
            ("bench.scanning", "--files", "3000"),
            ("bench.checks", "--rounds", "1"),
            ("bench.memory", "--megapixels", "1"),
            (
                *("bench.engines", "--peers", "none", "--sets", "s256,raw32", "--rounds", "1"),
                *("--seconds", "0.2", "--images", "600"),
            ),
            (
                *("bench.ranks", "--device", "cpu", "--engine", "gather", "--batch", "4"),
                *("--steps", "1", "--rounds", "1", "--images", "50"),
            ),
            ("bench.importing", "--rounds", "1"),
            ("bench.cold", "--size", "3", "--rounds", "1"),
        ):
            command = [sys.executable, "-m", module, *options, "--json", str(result)]
            if module in (
                "bench.loading",
                "bench.conversion",
                "bench.scanning",
                "bench.checks",
                "bench.engines",
                "bench.ranks",
                "bench.cold",
            ):
                command.insert(3, str(source))
            subprocess.run(command, check=True)
        assert len(result.read_text().splitlines()) == 9


if __name__ == "__main__":
    main()
