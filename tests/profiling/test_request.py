"""The configurations that profile_cpu.py writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcb.config.config import Config
from rlcb.config.yaml_file import build_config, read_config_file
from rlcb.errors import UsageError
from rlcb.paths import default_config_path
from rlcb.profiling import request
from rlcb.profiling.request import pair_of_file, with_value, write_setup
from tests.profiles import profile, setup


def base(algorithm: str, mode: str, network: str = "nature") -> Config:
    path = default_config_path(algorithm, mode)
    data = read_config_file(path)
    data["model"]["architecture"] = network
    return build_config(data, str(path))


@pytest.mark.parametrize(
    ("pair", "learners", "expected"),
    [
        (("ppo", "sequential"), None, {"num_threads": 2, "microbatch_size": 64}),
        (("ppo", "parallel"), None, {"num_threads": 2, "microbatch_size": 64}),
        (("a3c", "parallel"), None, {"num_threads": 2, "microbatch_size": 64}),
        (("impala", "parallel"), 3, {"num_threads": 2, "microbatch_size": 64}),
    ],
)
def test_a_written_configuration_is_the_shipped_one_with_the_recommendation_in_it(
    tmp_path: Path, pair: tuple[str, str], learners: int | None, expected: dict[str, int]
) -> None:
    path = tmp_path / "new" / f"local_{pair[0]}_{pair[1]}.yaml"
    processes = 1 if pair[1] == "sequential" else 6
    wanted = setup(processes=processes, learners=learners, threads=2, num_envs=48, microbatch_size=64)
    config = base(*pair)
    write_setup(path, config, wanted, profile(), overwrite=False)
    found = build_config(read_config_file(path), str(path))
    data = config.model_dump()
    data["hardware"] |= expected
    data["env"]["num_envs"] = 48
    if learners:
        data["impala"] |= {"num_actors": 6, "num_learners": 3}
    elif pair[1] == "parallel":
        data["parallel"]["num_workers"] = 6
    assert found.model_dump() == data
    text = path.read_text()
    assert "Written by profile_cpu.py from made-up_nature.json, measured 2030-01-02T03:04:05+00:00" in text
    assert "microbatch_size: 64         # no measured size is faster" in text
    assert "Where the values come from" not in text  # it is said of the shipped file, whose sizes may differ
    kept = [line for line in default_config_path(*pair).read_text().splitlines() if "seed: 42" in line]
    assert kept[0] in text


def test_a_setting_deep_in_a_section_is_written_too(tmp_path: Path) -> None:
    config = base("ppo", "sequential")
    data = config.model_dump()
    data["env"]["procgen"]["center_agent"] = False
    changed = build_config(data, "a test")
    path = tmp_path / "x_ppo_sequential.yaml"
    write_setup(path, changed, setup(processes=1), profile(), overwrite=False)
    found = build_config(read_config_file(path), str(path))
    assert found.env.procgen.center_agent is False
    assert found.hardware.microbatch_size == 128


def test_a_file_is_not_overwritten_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "local_ppo_parallel.yaml"
    path.write_text("mine")
    with pytest.raises(UsageError, match="exists; use --overwrite"):
        write_setup(path, base("ppo", "parallel"), setup(), profile(), overwrite=False)
    assert path.read_text() == "mine"
    write_setup(path, base("ppo", "parallel"), setup(), profile(), overwrite=True)
    assert "num_workers: 2" in path.read_text()


def test_an_overlay_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "local_ppo_parallel.yaml"
    path.write_text("when:\n  ppo:\n    training:\n      n_steps: 256\n")
    before = path.read_text()
    with pytest.raises(UsageError, match=r"is an overlay .* give the name of another file"):
        write_setup(path, base("ppo", "parallel"), setup(), profile(), overwrite=True)
    assert path.read_text() == before


def test_the_name_of_a_file_says_algorithm_and_mode() -> None:
    names = {
        "config/local_ppo_parallel.yaml": ("ppo", "parallel"),
        "impala_sequential.yaml": ("impala", "sequential"),
        "a3c_parallel_old.yaml": None,
        "mine.yaml": None,
    }
    assert {name: pair_of_file(Path(name)) for name in names} == names
    with pytest.raises(UsageError, match=r"must end in \.yaml"):
        request.refuse_if_exists(Path("local_ppo_parallel.txt"), overwrite=False)


def test_a_value_replaces_its_line_or_comes_to_the_end_of_its_section() -> None:
    text = "a: 1\n\nenv:\n  id: x   # a game\n  other:  2\n\nmodel:\n  size: 3\n"
    assert with_value(text, "env.id", "y", "why").splitlines()[3].split() == ["id:", "y", "#", "why"]
    added = with_value(text, "env.new", 4, "why").splitlines()
    assert [line.split()[:2] for line in added[4:7]] == [["other:", "2"], ["new:", "4"], []]
    assert with_value(text, "fresh.key", None, "why").splitlines()[-2:] == [
        "fresh:",
        f"{'  key: null':<29} # why",
    ]
