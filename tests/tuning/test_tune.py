"""tune: the profile, where it goes, and what is left where it fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fastdata import Profile, convert, make_loader, open_dataset, tune, tune_dataloader
from fastdata.cli import main
from fastdata.errors import DataError, UsageError
from fastdata.recipe import Recipe
from fastdata.tuning.conversion import parse_format
from fastdata.tuning.verdict import repaid
from tests.tuning.conftest import RECIPE, TUNE, no_step

ROOT = Path(__file__).parents[2]
BUDGET = 0.5
pytestmark = pytest.mark.usefixtures("no_process")


def profiles(cache: Path) -> list[Path]:
    return list(cache.rglob("*.json"))


def test_the_result_is_kept_and_the_loader_takes_it(packed: Path, cache: Path) -> None:
    lines: list[str] = []
    profile = tune(
        packed, 8, recipe=RECIPE, engine="workers", step=no_step, budget=BUDGET, report=lines.append
    )
    (kept,) = profiles(cache)
    assert Profile.load(kept) == profile
    assert str(kept) in lines[-1]
    with make_loader(packed, 8, recipe=RECIPE) as loader:
        assert loader.carrier.num_workers == profile.setting["num_workers"]
        assert "from the profile of" in loader.explain()
    check_evidence(profile)
    # What is not the same work has no profile.
    with make_loader(packed, 4, recipe=RECIPE) as loader:
        assert "No tuned settings are kept" in loader.explain()


def check_evidence(profile: Profile) -> None:
    trials = profile.evidence["trials"]
    assert 1 <= len(trials) <= 4
    assert [row["incumbent"] for row in trials].count(True) == 1
    low, high = profile.rate_interval
    assert low <= profile.rate <= high
    assert profile.step_rate is not None
    assert profile.ceiling == profile.step_rate
    assert profile.share == pytest.approx(min(1.0, profile.rate / profile.ceiling))
    stages = profile.evidence["spaces"][0]["stages"]
    assert {"fetch", "decode", "crop and resize", "receive"} <= set(stages)
    for cost in stages.values():
        assert cost["blocked"] == pytest.approx(max(0, cost["wall"] - cost["cpu"]))
    assert profile.evidence["step"]["beside_workers"] is not None
    assert profile.loader_rate is not None
    for what in ("pin", "host to device", "GPU utilisation", "SM activity"):
        assert "no CUDA device" in profile.not_measured[what]


def test_without_a_goal_nothing_is_claimed_of_one(packed: Path, cache: Path) -> None:
    profile = tune(packed, 8, recipe=RECIPE, engine="workers", budget=BUDGET, save=False)
    assert profiles(cache) == []
    assert (profile.ceiling, profile.share, profile.step_rate) == (None, None, None)
    assert profile.verdict.startswith("no step and no target rate")
    assert profile.not_measured["step"] == "no step was given"


class Broken(Exception):
    pass


def test_a_step_that_raises_leaves_no_profile(packed: Path, cache: Path) -> None:
    calls = []

    def step(batch: Any) -> None:
        calls.append(1)
        if len(calls) == 40:
            raise Broken

    with pytest.raises(Broken):
        tune(packed, 8, recipe=RECIPE, step=step, budget=BUDGET)
    assert profiles(cache) == []


def test_a_damaged_image_is_named(make_folder: Callable[..., Path], cache: Path) -> None:
    folder = make_folder({"ant": 16})
    for file in folder.glob("*/*"):
        file.write_bytes(b"\xff\xd8 no image")
    with pytest.raises(DataError, match=r"ant_\d+\.jpg"):
        tune(folder, 8, recipe=RECIPE, budget=BUDGET)
    assert profiles(cache) == []


def children_of(session: int) -> list[str]:
    """Processes of a session that are not over."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(status.parent.name)
    return found


def test_ctrl_c_leaves_no_process_and_no_profile(packed: Path, cache: Path) -> None:
    command = [*TUNE, packed, "--batch-size", "8"]
    command += ["--recipe", "imagenet-train", "--target-rate", "1e9", "--budget", "8s"]
    with subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if "the current setting" in line:  # the trials begin
                break
        os.killpg(running.pid, signal.SIGINT)
        rest = running.stderr.read()
        assert running.wait(timeout=30) == 130
    assert "interrupted" in rest
    assert "Traceback" not in rest
    assert children_of(running.pid) == []
    assert profiles(cache) == []


def test_a_format_is_converted_in_part_and_its_price_is_told(folder: Path, cache: Path) -> None:
    profile = tune(
        folder, 8, recipe=RECIPE, target_rate=1e9, budget=2 * BUDGET, formats=["memmap:48"]
    )
    (row,) = profile.evidence["formats"]
    assert row["name"] == "memmap 48"
    assert row["convert_seconds"] > 0
    assert row["repaid"] == repaid(row["convert_seconds"], row["seconds_saved_an_epoch"])
    advised = "converting to memmap 48" in profile.verdict
    assert profile.convert_to == ("memmap:48" if advised else None)
    assert profile.work["identity"] == open_dataset(folder).identity  # the setting is the folder's
    engines = {space["engine"] for space in profile.evidence["spaces"]}
    assert {"workers", "gather"} <= engines


def test_a_format_that_is_there_costs_nothing(packed: Path, cache: Path, tmp_path: Path) -> None:
    other = tmp_path / "raw"
    convert(packed, other, to="memmap", size=48, workers=1)
    profile = tune(
        packed, 8, recipe=RECIPE, target_rate=1e9, budget=BUDGET, formats=[other], engine="workers"
    )
    (row,) = profile.evidence["formats"]
    assert (row["name"], row["convert_seconds"]) == ("raw", 0)


@pytest.mark.parametrize(
    ("seconds", "saved", "words"),
    [
        (12.0, 5.0, "repaid after 2.4 epochs"),
        (0.0, 5.0, "and it is there already"),
        (None, 5.0, "not measured"),
        (12.0, 0.0, "never repaid"),
        (12.0, -1.0, "never repaid"),
    ],
)
def test_when_a_conversion_is_repaid(seconds: float | None, saved: float, words: str) -> None:
    assert words in repaid(seconds, saved)


@pytest.mark.parametrize(
    ("text", "size", "expected"),
    [
        ("webdataset", 224, ("webdataset", None)),
        ("lmdb:320", 224, ("lmdb", 320)),
        ("memmap", 224, ("memmap", 256)),  # 224 of 256 is the customary crop
        ("memmap:300", 224, ("memmap", 300)),
    ],
)
def test_formats_are_named_with_a_size(
    text: str, size: int, expected: tuple[str, int | None]
) -> None:
    assert parse_format(text, Recipe(size=size, crop="random_resized")) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step": 3}, "step.*callable.*3"),
        ({"step": no_step, "target_rate": 5.0}, "step or target_rate.*both"),
        ({"target_rate": 0}, "target_rate.*above 0.*0"),
        ({"budget": -1}, "budget.*above 0.*-1"),
        ({"formats": ["zip"]}, "webdataset.*'zip'"),
        ({"formats": ["memmap:big"]}, "memmap:256.*'memmap:big'"),
        ({"formats": ["webdataset"]}, "converted already"),
        ({"engine": "warp"}, "'warp'"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: dict[str, Any], message: str, packed: Path, cache: Path
) -> None:
    with pytest.raises(UsageError, match=f"(?s){message}"):
        tune(packed, 8, **{"recipe": RECIPE, "budget": BUDGET, **arguments})


# --- any torch dataset ----------------------------------------------------------------------------


class Numbers(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 300

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.ones(3, 16, 16), index


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(torch.ones(3, 16, 16), index) for index in range(100)])


def joined(samples: list[Any]) -> torch.Tensor:
    return torch.tensor([label for _, label in samples])


def test_a_torch_dataset_gets_its_dataloaders_arguments() -> None:
    seen: list[Any] = []
    profile = tune_dataloader(
        Numbers(),
        8,
        step=seen.append,
        collate_fn=joined,
        sampler=range(40, 80),
        budget=BUDGET,
        num_workers=1,
    )
    loader: Any = torch.utils.data.DataLoader(Numbers(), 8, **profile.setting)
    assert len(list(loader)) == 38
    assert set(profile.setting) == {
        *("num_workers", "prefetch_factor", "pin_memory", "persistent_workers"),
        "multiprocessing_context",
    }
    assert profile.setting["pin_memory"] is False
    assert {int(label) for batch in seen for label in batch} == set(range(40, 80))


def test_an_iterable_dataset_can_be_tuned() -> None:
    profile = tune_dataloader(Stream(), 8, target_rate=1.0, budget=BUDGET)
    assert profile.share == 1.0


def test_a_dataset_that_raises_is_heard() -> None:
    class Raising(Numbers):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            raise Broken

    with pytest.raises(Broken):
        tune_dataloader(Raising(), 8, budget=BUDGET)


@pytest.mark.parametrize(
    ("batch_size", "message"), [(0, "at least 1.*0"), ("8", "'8'"), (301, "301.*300 samples")]
)
def test_a_wrong_batch_size_is_refused(batch_size: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tune_dataloader(Numbers(), batch_size, budget=BUDGET)


# --- the command line -----------------------------------------------------------------------------


def test_json_is_all_that_is_printed(
    packed: Path,
    cache: Path,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "noisy.py").write_text(
        "import os\ndef step(batch):\n    print('noise')\n    os.write(1, b'more')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    plot = tmp_path / "plot.html"
    arguments = ["tune", str(packed), "--batch-size", "8", "--recipe", "cifar-train"]
    arguments += ["--step", "noisy:step", "--budget", "1s", "--plot", str(plot), "--json"]
    assert main(arguments) == 0
    printed = capfd.readouterr()
    found = json.loads(printed.out)
    assert found["setting"]["engine"] == "workers"
    assert "noise" in printed.err
    page = plot.read_text()
    assert "<svg" in page
    assert found["verdict"].split(";")[0][:20] in page
    assert "http" not in page.replace("http-equiv", "")


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_the_report_is_for_people(
    packed: Path, cache: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plot = tmp_path / "plot.png"
    arguments = ["tune", str(packed), "--batch-size", "8", "--recipe", "cifar-train"]
    arguments += ["--target-rate", "1e9", "--budget", "1s", "--plot", str(plot)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "candidate" in printed
    assert "data-bound" in printed
    assert "not measured: GPU utilisation" in printed
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert main([*arguments[:6], "--verify"]) == 0
    assert "Verified in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "PATH or --dataset"),
        (["x", "--dataset", "a:b"], "one of them only"),
        (["x", "--step", "step"], "MODULE:NAME"),
        (["x", "--step", "nowhere_at_all:step"], "nowhere_at_all"),
        (["x", "--step", "math:pi"], "something to call"),
        (["x", "--plot", "a.svg"], ".png or .html"),
        (["--dataset", "a:b", "--verify"], "needs PATH"),
        (["x", "--plot", "absent/a.png"], "folder"),
        (["--dataset", "math:pi", "--recipe", "raw"], "something to call|brings its own"),
    ],
)
def test_a_wrong_command_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "--batch-size", "8", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.strip().splitlines()
    assert any(part in line for part in message.split("|"))


def test_a_budget_is_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["tune", "x", "--batch-size", "8", "--budget", "soon"])
    assert "60s or 2m" in capsys.readouterr().err


def test_formats_must_have_different_names(
    make_folder: Callable[..., Path], cache: Path, tmp_path: Path
) -> None:
    source = make_folder({"a": 8, "b": 8})
    (tmp_path / "other").mkdir()
    twin = tmp_path / "other" / source.name
    convert(source, twin, to="webdataset", workers=1)
    with pytest.raises(UsageError, match="different names"):
        tune(source, 4, recipe=RECIPE, formats=[twin], budget=BUDGET)
