"""The demo, small: it ends with a table and a report, and runs again over what it left."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fastdata.cli import main
from fastdata.demo.story import tell
from fastdata.errors import UsageError


class Tags(HTMLParser):
    """Collects what a page is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_demo_runs_and_runs_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "demo"
    assert main(["demo", str(root), "--images", "640", "--epochs", "1"]) == 0
    out = capsys.readouterr().out
    for source in ("folder", "webdataset", "lmdb", "memmap"):
        assert re.search(rf"^{source} +[\d.]+ +[\d,]+ +[\d.]+x$", out, re.MULTILINE), source
    assert "epoch 1: loss" in out
    page = Tags()
    page.feed((root / "report.html").read_text())
    assert page.tags.count("svg") == 2
    assert page.tags.count("img") == 10
    # One file: whatever it shows is inside it.
    assert all(source.startswith(("data:", "#")) for source in page.sources)
    assert main(["demo", str(root), "--images", "640", "--epochs", "1"]) == 0
    assert "was converted before" in capsys.readouterr().out


@pytest.mark.parametrize(("images", "epochs"), [(639, 1), (640, 0)])
def test_too_small_a_demo_is_refused(tmp_path: Path, images: int, epochs: int) -> None:
    with pytest.raises(UsageError, match="needs at least"):
        tell(tmp_path, images=images, epochs=epochs)
