"""Profiles: kept, read, refused, and what the loader makes of them."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fastdata import Profile, Recipe, convert, make_loader
from fastdata.errors import StorageError, UsageError
from fastdata.loader import Loader
from fastdata.profile import environment, profile_path
from fastdata.tuned import work_of
from tests.conftest import jpeg, picture

# torch warns of more workers than CPUs, which is what these tests want on any machine.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
RECIPE = Recipe(size=16, crop="random_resized", dtype="uint8")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """22 images as a webdataset."""
    root = tmp_path_factory.mktemp("kept")
    (root / "source" / "ant").mkdir(parents=True)
    for number in range(22):
        data = jpeg(picture(40, 30, seed=number))
        (root / "source" / "ant" / f"{number}.jpg").write_bytes(data)
    convert(root / "source", root / "packed", to="webdataset", workers=1)
    return root / "packed"


def load(path: Path, **options: Any) -> Loader:
    return make_loader(path, 4, recipe=RECIPE, **options)


@pytest.fixture
def profile(packed: Path) -> Profile:
    """Three workers and a prefetch of 5, which nobody would choose here."""
    with load(packed) as loader:
        work = work_of(loader.carrier.settings)
    setting = {
        "engine": "workers",
        "num_workers": 3,
        "prefetch_factor": 5,
        "engine_options": {"decoder": "pillow"},
    }
    return Profile(
        setting=setting,
        rate=1000.0,
        rate_interval=(900.0, 1100.0),
        verdict="step-bound",
        limit="step",
        next_limit="decode",
        work=work,
        environment=environment("cpu"),
        created="2026-01-02T03:04:05+00:00",
        loader_rate=1e-3,
        share=0.98,
    )


def taken(loader: Loader) -> tuple[str, int, int]:
    return loader.engine, loader.carrier.num_workers, loader.carrier.prefetch_factor


def test_a_profile_is_kept_and_comes_back_whole(profile: Profile, cache: Path) -> None:
    path = profile.save()
    assert path.parent == cache / "fastdata" / "profiles"
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # no temporary file
    assert Profile.load(path) == profile
    assert json.loads(path.read_text())["setting"] == profile.setting


def test_a_relative_cache_directory_is_ignored(
    profile: Profile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert profile_path(profile.work).is_relative_to(tmp_path / ".cache" / "fastdata")


@pytest.mark.parametrize("name", ["identity", "recipe", "batch_size", "device"])
def test_each_work_has_a_file_of_its_own(profile: Profile, name: str) -> None:
    other = {**profile.work, name: "another"}
    assert profile_path(other) != profile_path(profile.work)
    moved = {**profile.work, "path": "/elsewhere"}
    assert profile_path(moved) == profile_path(profile.work)  # the same data in another place


def test_the_loader_takes_what_is_kept_and_says_so(profile: Profile, packed: Path) -> None:
    profile.save()
    with load(packed) as loader:
        text = loader.explain()
        assert taken(loader) == ("workers", 3, 5)
    assert "engine, num_workers, prefetch_factor: from the profile of 2026-01-02" in text
    assert "98% of its ceiling" in text
    assert "decoder pillow" in text
    assert "3 worker processes, as the profile says" in text


def test_explicit_arguments_win_one_by_one(profile: Profile, packed: Path) -> None:
    profile.save()
    with load(packed, num_workers=1, engine_options={"decoder": "simplejpeg"}) as loader:
        text = loader.explain()
        assert taken(loader) == ("workers", 1, 5)
    assert "engine, prefetch_factor: from the profile" in text
    assert "num_workers: as asked" in text
    assert "1 worker processes, as asked" in text
    assert "decoder simplejpeg" in text


def test_nothing_is_looked_for_where_nothing_is_open(profile: Profile, packed: Path) -> None:
    profile.save()
    with load(packed, engine="workers", num_workers=0, prefetch_factor=1) as loader:
        assert "profile" not in loader.explain()
    with load(packed, profile=None, num_workers=0) as loader:
        assert "profile" not in loader.explain()


def test_a_profile_of_another_engine_is_not_used(profile: Profile, packed: Path) -> None:
    replace(profile, setting={**profile.setting, "engine": "gather"}).save()
    with load(packed, engine="workers", num_workers=1) as loader:
        assert taken(loader)[:2] == ("workers", 1)
        assert "it is for engine gather, and engine workers was asked for" in loader.explain()


def test_an_engine_that_cannot_do_it_any_more_gives_way(
    profile: Profile, packed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    replace(profile, setting={**profile.setting, "engine": "gather"}).save()
    with caplog.at_level(logging.WARNING), load(packed) as loader:
        assert loader.engine == "workers"
        assert loader.carrier.prefetch_factor == 2  # its own default
        assert "not used: engine='gather'" in loader.explain()
    assert "not used" in caplog.text


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b'{"version": 2}', b'{"version": 99}', b"\xff\xfe\x00", b"null"],
)
def test_a_broken_file_never_fails_a_training(
    content: bytes, profile: Profile, packed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    profile.save().write_bytes(content)
    with caplog.at_level(logging.WARNING), load(packed, num_workers=0) as loader:
        assert "not used" in loader.explain()
        assert "fastdata tune" in loader.explain()
        assert len(list(loader)) == 5
    assert "not used" in caplog.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_workers", -1),
        ("num_workers", "many"),
        ("prefetch_factor", 1.5),
        ("engine", 3),
        ("engine_options", []),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(
    name: str, value: Any, profile: Profile, packed: Path
) -> None:
    path = replace(profile, setting={**profile.setting, name: value}).save()
    with pytest.raises(UsageError, match=name):
        Profile.load(path)
    with load(packed, num_workers=0) as loader:
        assert "not used" in loader.explain()


def test_an_option_or_engine_of_another_version_never_fails_a_training(
    profile: Profile, packed: Path
) -> None:
    for change in ({"engine": "warp"}, {"engine_options": {"warp": 9}}):
        replace(profile, setting={**profile.setting, **change}).save()
        with load(packed, num_workers=0) as loader:
            assert "'warp'" in loader.explain()
            assert "not used" in loader.explain()


@pytest.mark.parametrize("name", ["cpus", "affinity", "quota", "gpu", "torch", "fastdata"])
def test_another_environment_invalidates_it_with_a_message(
    name: str, profile: Profile, packed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    replace(profile, environment={**profile.environment, name: "other"}).save()
    with caplog.at_level(logging.WARNING), load(packed, num_workers=0) as loader:
        assert f"{name} was 'other' and is {profile.environment[name]!r} now" in loader.explain()
        assert "run fastdata tune again" in loader.explain()
    assert f"{name} was 'other'" in caplog.text


def test_a_profile_that_is_named_must_hold(profile: Profile, packed: Path, tmp_path: Path) -> None:
    path = profile.save(tmp_path / "mine.json")
    for given in (profile, path, str(path)):
        with load(packed, profile=given) as loader:
            assert taken(loader) == ("workers", 3, 5)
    other = replace(profile, work={**profile.work, "batch_size": 8})
    with pytest.raises(UsageError, match="batch_size was 8 and is 4 now"):
        load(packed, profile=other)
    with pytest.raises(UsageError, match=r"absent\.json"):
        load(packed, profile=tmp_path / "absent.json")
    gather = replace(profile, setting={**profile.setting, "engine": "gather"})
    with pytest.raises(UsageError, match="gather"):
        load(packed, profile=gather)


@pytest.mark.parametrize("value", [3, 1.5, [], True])
def test_what_is_no_profile_is_refused(value: Any, packed: Path) -> None:
    with pytest.raises(UsageError, match=f"(?s)profile.*Profile.*{value!r}".replace("[]", r"\[\]")):
        load(packed, profile=value)


def test_verifying_loads_for_a_moment_and_goes_back(
    profile: Profile, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastdata.tuned._VERIFY_SECONDS", 2.0)
    with load(packed, profile="verify", num_workers=0) as loader:
        assert "Not verified" in loader.explain()
    profile.save()
    with load(packed, profile="verify", num_workers=0, seed=5) as loader:
        verified, state = list(loader), loader.state_dict()
        assert "Verified in" in loader.explain()
        assert "0.001" not in loader.explain().split("Verified")[0]
    with load(packed, profile=None, num_workers=0, seed=5) as loader:
        plain = list(loader)
        assert loader.state_dict() == state
    for (images, labels), (expected, wanted) in zip(verified, plain, strict=True):
        assert images.equal(expected)
        assert labels.equal(wanted)


def test_verifying_says_when_the_loader_has_become_slower(
    profile: Profile,
    packed: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("fastdata.tuned._VERIFY_SECONDS", 2.0)
    replace(profile, loader_rate=1e12).save()
    with caplog.at_level(logging.WARNING), load(packed, profile="verify", num_workers=0) as loader:
        assert "Run fastdata tune again" in loader.explain()
    assert "Run fastdata tune again" in caplog.text


def test_a_place_that_cannot_be_written_is_named(profile: Profile, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        profile.save(tmp_path / "file" / "profile.json")


def test_a_file_that_cannot_be_read_never_fails_a_training(profile: Profile, packed: Path) -> None:
    place = profile.save()
    place.unlink()
    place.mkdir()  # not even by root, who may read every file
    with load(packed, num_workers=0) as loader:
        assert "not used" in loader.explain()
