"""Plots and tables: they are well formed, whatever they are named."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from bench.plots import Bar, bars, lines, write_page
from bench.report import Table

ODD = 'a <b> & "c" | d'


def texts(svg: str) -> list[str]:
    """What is written on a plot; it has to be XML."""
    return [text.text or "" for text in ElementTree.fromstring(svg).iter() if "text" in text.tag]


def test_bars_are_as_long_as_their_values() -> None:
    svg = bars([Bar("half", 50, 40, 60), Bar(ODD, 100, 90, 100, "2x")], "images/s")
    widths = [
        float(shape.get("width", "0"))
        for shape in ElementTree.fromstring(svg).iter()
        if shape.tag.endswith("rect")
    ]
    assert widths[0] * 2 == widths[1]
    assert {"half", ODD, "50", "2x", "images/s"} <= set(texts(svg))


def test_lines_leave_out_what_has_no_logarithm() -> None:
    svg = lines({ODD: [(0, 1), (10, 5), (100, 50)]}, "samples", "", ["x^1.00"])
    assert svg.count("<circle") == 2
    assert {ODD, "x^1.00", "samples", "100"} <= set(texts(svg))


def test_nothing_to_show_is_said() -> None:
    assert "nothing was measured" in lines({"none": []}, "x", "y")
    assert ElementTree.fromstring(bars([], "images/s")) is not None


def test_a_page_holds_everything_itself(tmp_path: Path) -> None:
    table = Table("Loading", ["row", ODD], [["one", "1"]], ["a note"])
    write_page(tmp_path / "page.html", ODD, "facts", [table.html()])
    page = (tmp_path / "page.html").read_text()
    assert ODD not in page
    assert "&lt;b&gt;" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_a_table_is_the_same_everywhere() -> None:
    table = Table("Loading", ["row", "images/s"], [["one|two", "1"]], ["a note"])
    assert table.text().splitlines()[2:] == [
        "  row      images/s",
        "  one|two         1",
        "  a note",
    ]
    assert "| one/two | 1 |" in table.markdown()
