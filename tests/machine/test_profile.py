"""Profiles as files, and whose machine they are of."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rlcb import cpu
from rlcb.config.settings import ModelConfig
from rlcb.cpu import cpu_flags, cpu_identity
from rlcb.errors import UsageError
from rlcb.machine.efficiency import efficiency_of, find_profile, installed_torch
from rlcb.machine.profile import (
    FOLDER_VARIABLE,
    mismatch_with_machine,
    profiles_folder,
    read_profile,
    resolved_model,
    write_profile,
)
from rlcb.profiling.job import with_other_games
from tests import runs
from tests.profiles import ENV, configured, profile, with_results


@pytest.fixture(autouse=True)
def _machine_of_two_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cpu, "usable_cores", lambda: 2)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "profiles"))


def test_a_profile_is_the_same_after_it_was_written_and_read() -> None:
    written = with_results()
    path = write_profile(written, profiles_folder())
    assert path == profiles_folder() / "made-up_nature.json"
    assert read_profile(path) == written
    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))


def test_the_file_of_a_profile_names_machine_network_and_precision() -> None:
    odd = profile(host="node 7/b").model_copy(
        update={"network": profile().network.model_copy(update={"model": ModelConfig(precision="bfloat16")})}
    )
    assert odd.file_name == "node-7-b_nature_bfloat16.json"


def test_networks_of_other_sizes_have_files_of_their_own() -> None:
    def name(**sizes: Any) -> str:
        network = profile().network.model_copy(update={"model": ModelConfig(**sizes)})
        return profile().model_copy(update={"network": network}).file_name

    assert name(hidden_size=512) == "made-up_nature_hidden-size-512.json"
    assert name(impala_channels=(4, 8)) == "made-up_nature_impala-channels-4-8.json"
    assert name(hidden_size=256) == "made-up_nature.json"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema_version": 1}', "\xff\xfe"])
def test_a_file_that_is_no_profile_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(content.encode("latin1"))
    with pytest.raises(UsageError, match=r"is not a profile of profile_cpu\.py") as error:
        read_profile(path)
    assert "\n" not in str(error.value)


def test_a_profile_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    data = json.loads(write_profile(profile(), tmp_path).read_text())
    path = tmp_path / "newer.json"
    path.write_text(json.dumps(data | {"surprise": 1}))
    with pytest.raises(UsageError, match="surprise"):
        read_profile(path)


def test_games_of_an_earlier_profile_are_kept_unless_the_machine_is_another(tmp_path: Path) -> None:
    other = profile().environments[0].model_copy(update={"id": "procgen-maze-v0", "seconds": 1.0})
    again = profile().environments[0].model_copy(update={"seconds": 1.0})
    path = write_profile(profile().model_copy(update={"environments": (other, again)}), tmp_path)
    kept = with_other_games(profile(), path).environments
    assert [(each.id, each.seconds) for each in kept] == [
        (ENV, 0.1e-3),
        (ENV, 0.08e-3),
        ("procgen-maze-v0", 1.0),
    ]
    for change in ({"usable_cores": 4}, {"identity": "another"}, {"flags": ("sve",)}, {"torch": "1.0"}):
        machine = profile().machine.model_copy(update=change)
        assert (
            len(with_other_games(profile().model_copy(update={"machine": machine}), path).environments) == 2
        )
    assert with_other_games(profile(), tmp_path / "none.json") == profile()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cpu_model": "Another CPU"}, r"another processor \(Another CPU; this is"),
        ({"identity": "cpu family 1"}, r"another processor of the same name \(cpu family 1; this is"),
        ({"flags": ["sve"]}, r"another processor of the same name \(sve; this is"),
        ({"usable_cores": 64}, "64 usable cores; there are 2 now"),
        ({"torch": "1.0"}, "torch 1.0; this is"),
    ],
)
def test_a_profile_of_another_machine_is_not_used(change: dict[str, Any], words: str) -> None:
    assert mismatch_with_machine(profile(), installed_torch()) is None
    data = json.loads(profile().model_dump_json())
    foreign = profile(machine=data["machine"] | change)
    assert re.search(words, str(mismatch_with_machine(foreign, installed_torch())))
    write_profile(foreign, profiles_folder())
    found = efficiency_of(configured(), 100.0, 2)
    assert found["efficiency"] is None
    assert re.search(words, found["efficiency_note"])


def test_the_newest_profile_that_fits_is_taken() -> None:
    folder = profiles_folder()
    write_profile(profile(host="old", measured_at="2029-01-01T00:00:00+00:00"), folder)
    write_profile(profile(host="new", measured_at="2031-01-01T00:00:00+00:00"), folder)
    newest = profile(host="newest", measured_at="2032-01-01T00:00:00+00:00", environments=[])
    write_profile(newest, folder)  # which has not measured the game
    (folder / "broken.json").write_text("{")
    found = find_profile(folder, configured())
    assert isinstance(found, tuple)
    assert found[0].name == "new_nature.json"


def test_the_flags_of_the_processor_are_those_that_matter(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor: 0\nflags\t\t: fpu avx2 avx512f avx512_bf16 lm\n")
    assert cpu_flags(cpuinfo) == ("avx2", "avx512f", "avx512_bf16")
    assert cpu_flags(tmp_path / "none") == ()
    cpuinfo.write_text("processor: 0\nFeatures\t: fp asimd sve\n\nprocessor: 1\nFeatures\t: fp bf16\n")
    assert cpu_flags(cpuinfo) == ("asimd", "sve")


def test_processors_of_the_same_name_are_distinguished(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        "processor : 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\nstepping\t: 1\n"
    )
    assert cpu_identity(cpuinfo) == "cpu family 25, model 17, stepping 1"
    cpuinfo.write_text("processor : 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\nCPU revision\t: 1\n")
    assert cpu_identity(cpuinfo) == "CPU implementer 0x41, CPU part 0xd0c, CPU revision 1"
    assert cpu_identity(tmp_path / "none") == ""


def test_a_networks_settings_are_those_that_it_uses() -> None:
    image = resolved_model(ModelConfig(mlp_sizes=(5,)), True)
    assert (image.architecture, image.mlp_sizes) == ("impala", (64, 64))
    vector = resolved_model(ModelConfig(mlp_sizes=(5,), hidden_size=7), False)
    assert (vector.architecture, vector.mlp_sizes, vector.hidden_size) == ("mlp", (5,), 256)


def test_the_folder_of_profiles_is_the_projects_unless_said_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE)
    assert profiles_folder() == runs.PROJECT / "profiles"
