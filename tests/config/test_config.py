"""Configurations: what is accepted, what is refused, and that each refusal says in one line what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from rlcb.config.config import Config, flat_settings, largest_divisor
from rlcb.config.games import GAMES, GAMES_WITH_MODE
from rlcb.config.settings import EnvConfig
from rlcb.config.yaml_file import build_config, dump_config, parse_yaml, read_config_file, set_value
from rlcb.errors import UsageError

PROJECT = Path(__file__).resolve().parents[2]
CONFIG_FILES = sorted((PROJECT / "config").glob("*_*.yaml"))  # without overlays and studies


def load(text: str, folder: Path) -> Config:
    """The configuration that a file with this text gives."""
    path = folder / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return build_config(read_config_file(path), path.name)


def refusal(text: str, folder: Path) -> str:
    """The message with which a file is refused."""
    with pytest.raises(UsageError) as caught:
        load(text, folder)
    message = str(caught.value)
    assert message and "\n" not in message
    assert "settings.yaml" in message
    return message


# --- The files that come with the project ---


@pytest.mark.parametrize("path", CONFIG_FILES, ids=lambda path: path.stem)
def test_every_configuration_file_of_the_project_loads(path: Path) -> None:
    config = build_config(read_config_file(path), path.name)
    mode = "cluster" if config.mode == "distributed" else config.mode
    assert {config.algorithm, mode} <= set(path.stem.split("_"))  # it says what it is for


def test_the_default_file_is_the_published_setting_of_32_environments_128_steps_and_4_epochs() -> None:
    config = build_config(read_config_file(PROJECT / "config" / "ppo_sequential.yaml"), "ppo_sequential.yaml")
    training = config.training
    assert (config.env.id, config.env.num_envs, config.env.num_levels) == ("procgen-coinrun-v0", 32, 200)
    assert (training.n_steps, training.batch_size, training.n_epochs) == (128, 1024, 4)
    assert training.total_timesteps == 25_000_000
    assert config.env.distribution_mode == "easy"


# --- Numbers ---


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1e-4", 1e-4),
        ("5E-4", 5e-4),
        ("1e0", 1.0),
        ("1.5e-3", 1.5e-3),
        (".5e-3", 5e-4),
        ("2", 2.0),
        ("1.e-4", 1e-4),
    ],
)
def test_every_way_to_write_a_number_in_yaml_is_a_number(text: str, number: float, tmp_path: Path) -> None:
    rate = load(f"training: {{learning_rate: {text}}}", tmp_path).training.learning_rate
    assert type(rate) is float
    assert rate == number


@pytest.mark.parametrize("text", ["25e6", "25_000_000", "25000000", "2.5e+7", "25000000.0"])
def test_a_count_may_be_written_with_an_exponent(text: str, tmp_path: Path) -> None:
    steps = load(f"training: {{total_timesteps: {text}}}", tmp_path).training.total_timesteps
    assert type(steps) is int
    assert steps == 25_000_000


def test_times_and_counts_in_words_become_numbers(tmp_path: Path) -> None:
    text = "training: {total_timesteps: 1.5M, duration_hours: 1h30m, n_steps: 1k}\n"
    text += "logging: {checkpoint_minutes: 90s}\nparallel: {timeout_seconds: 2m}"
    config = load(text, tmp_path)
    assert (config.training.total_timesteps, config.training.n_steps) == (1_500_000, 1000)
    assert (config.training.duration_hours, config.parallel.timeout_seconds) == (1.5, 120.0)
    assert config.logging.checkpoint_minutes == 1.5
    assert build_config(parse_yaml(dump_config(config), "dump"), "dump") == config
    assert "duration_hours: 1.5\n" in dump_config(config)


@pytest.mark.parametrize("text", ["e4", "1e", "1e-4x", "version-1e-4"])
def test_words_that_resemble_numbers_stay_words(text: str) -> None:
    assert parse_yaml(f"key: {text}", "file") == {"key": text}


# --- Refusals ---


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # unknown keys
        ("wandb: 1", ["wandb = 1", "unknown key", "training"]),
        ("training: {learning_rat: 0.1}", ["training.learning_rat = 0.1", "unknown key", "learning_rate"]),
        ("env: {procgen: {centre: true}}", ["env.procgen.centre = True", "unknown key", "center_agent"]),
        ("learning_rate: 0.1", ["learning_rate = 0.1", "unknown key"]),
        ("1: 2", ["1", "strings"]),
        # wrong types
        ("training: {learning_rate: '1e-4'}", ["training.learning_rate = '1e-4'", "number"]),
        ("training: {learning_rate: fast}", ["training.learning_rate = 'fast'", "number"]),
        ("training: {gamma: true}", ["training.gamma = True", "number"]),
        ("training: {n_steps: 1.5}", ["training.n_steps = 1.5", "integer"]),
        ("training: {n_steps: '8'}", ["training.n_steps = '8'", "integer"]),
        ("training: {n_steps: null}", ["training.n_steps = None", "integer"]),
        ("env: {num_envs: true}", ["env.num_envs = True", "integer"]),
        ("env: {id: 5}", ["env.id = 5", "string"]),
        ("env: [coinrun]", ["env = ['coinrun']", "dictionary"]),
        ("training: 5", ["training = 5", "dictionary"]),
        ("training: {clip_value_loss: 1}", ["training.clip_value_loss = 1", "boolean"]),
        ("model: {impala_channels: 16}", ["model.impala_channels = 16", "tuple"]),
        ("model: {impala_channels: [16, x]}", ["model.impala_channels.1 = 'x'", "integer"]),
        ("- env", ["sections", "list"]),
        ("hello", ["sections", "str"]),
        # values out of range
        ("training: {learning_rate: 0}", ["training.learning_rate = 0", "greater than 0"]),
        ("training: {learning_rate: -1e-4}", ["training.learning_rate = -0.0001", "greater than 0"]),
        ("training: {learning_rate: .inf}", ["training.learning_rate = inf", "finite"]),
        ("training: {learning_rate: .nan}", ["training.learning_rate = nan", "finite"]),
        ("training: {vf_coef: .inf}", ["training.vf_coef = inf", "finite"]),
        ("training: {ent_coef: -0.1}", ["training.ent_coef = -0.1", "0"]),
        ("training: {gamma: 1.01}", ["training.gamma = 1.01", "less than or equal to 1"]),
        ("training: {gae_lambda: .nan}", ["training.gae_lambda = nan"]),
        ("training: {total_timesteps: 0}", ["training.total_timesteps = 0", "1"]),
        ("training: {duration_hours: -1}", ["training.duration_hours = -1", "greater than 0"]),
        ("training: {duration_hours: 1:30}", ["training.duration_hours = '1:30'", "such as 1h30m"]),
        ("training: {duration_hours: soon}", ["training.duration_hours = 'soon'", "such as 1h30m"]),
        ("training: {total_timesteps: many}", ["training.total_timesteps = 'many'", "250k or 1M"]),
        ("training: {seed: -1}", ["training.seed = -1", "0"]),
        ("training: {seed: 99999999999999999999}", ["training.seed = 99999999999999999999", "less than"]),
        ("training: {optimizer: sgd}", ["training.optimizer = 'sgd'", "adam", "rmsprop"]),
        ("env: {num_envs: 0}", ["env.num_envs = 0", "1"]),
        ("env: {num_levels: -1}", ["env.num_levels = -1", "0"]),
        ("env: {distribution_mode: medium}", ["env.distribution_mode = 'medium'", "easy", "exploration"]),
        ("model: {impala_channels: []}", ["model.impala_channels = []", "at least 1"]),
        ("model: {architecture: vit}", ["model.architecture = 'vit'", "impala"]),
        ("hardware: {device: cuda}", ["hardware.device = 'cuda'", "cpu"]),
        ("algorithm: dqn", ["algorithm = 'dqn'", "ppo"]),
        # combinations
        (
            "env: {num_envs: 4}\ntraining: {n_steps: 8, batch_size: 33}",
            ["training.batch_size = 33", "at most", "8 x 4 = 32"],
        ),
        ("env: {num_envs: 32, group_size: 7}", ["env.group_size = 7", "divide", "32"]),
        (
            "env: {distribution_mode: exploration, num_levels: 10}",
            ["env.num_levels = 10", "exploration", "leave out"],
        ),
        (
            "env: {distribution_mode: exploration, start_level: 3}",
            ["env.start_level = 3", "exploration", "leave out"],
        ),
        (
            "env: {start_level: 2147483600, num_levels: 100}",
            ["env.start_level = 2147483600", "100", "2147483647"],
        ),
        ("env: {start_level: 2147483647, num_levels: 0}", ["env.start_level = 2147483647", "2147483647"]),
        ("env: {kwargs: {a: 1}}", ["env.kwargs = {'a': 1}", "env.procgen"]),
    ],
)
def test_a_refusal_is_one_line_that_names_key_value_and_rule(
    text: str, words: list[str], tmp_path: Path
) -> None:
    message = refusal(text, tmp_path)
    for word in words:
        assert word in message


IMPALA = "algorithm: impala\ntraining: {n_epochs: 1, batch_size: null, normalize_advantages: false}\n"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_actors", 2),
        ("num_learners", 2),
        ("max_policy_lag", 0),
        ("max_policy_lag", 4),
        ("max_actor_restarts", 1),
        ("actor_nice", 0),
        ("check_unwritten", True),
    ],
)
def test_settings_of_actors_are_refused_where_there_are_none(key: str, value: object, tmp_path: Path) -> None:
    text = f"{IMPALA}impala: {{{key}: {json.dumps(value)}}}"
    assert f"impala.{key} = {value}: a sequential run has no actors" in refusal(text, tmp_path)
    assert getattr(load(f"mode: parallel\n{text}", tmp_path).impala, key) == value


def test_a_sequential_run_may_be_called_one_actor_and_one_learner(tmp_path: Path) -> None:
    config = load(f"{IMPALA}impala: {{num_actors: 1, num_learners: 1, max_policy_lag: 2}}", tmp_path)
    assert (config.num_processes, config.has_actors) == (1, False)


def test_each_mode_has_its_own_time_limit(tmp_path: Path) -> None:
    message = refusal("mode: distributed\nparallel: {timeout_seconds: 60}", tmp_path)
    assert "parallel.timeout_seconds = 60: the distributed mode has cluster.timeout_seconds" in message
    message = refusal("mode: parallel\ncluster: {timeout_seconds: 60}", tmp_path)
    assert "cluster.timeout_seconds = 60" in message
    ours = load(
        "mode: distributed\nparallel: {timeout_seconds: 120}\ncluster: {timeout_seconds: 60}", tmp_path
    )
    assert ours.cluster.timeout_seconds == 60


def test_all_problems_are_named_at_once(tmp_path: Path) -> None:
    message = refusal("training: {gamma: 2, n_steps: x}\nmodel: {depth: 3}", tmp_path)
    for word in ("training.gamma = 2", "training.n_steps = 'x'", "model.depth = 3"):
        assert word in message


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("env: {num_envs: 4", "line 1"),
        ("training:\n  gamma: 0.9\n  gamma: 0.99", "line 3"),
        ("training: {gamma: 0.9}\nenv: {}\ntraining: {gamma: 0.9}", "line 3"),
        ("env:\n  procgen: {center_agent: true, center_agent: true}", "line 2"),
        ("env: !!python/object/apply:os.getcwd []", "line 1"),
        ("? [a, b]\n: 1", "line 1"),
        ("\tenv: 1", "line 1"),
    ],
    ids=[
        "open bracket",
        "repeated key",
        "repeated section",
        "in a sub-section",
        "code",
        "list as key",
        "tab",
    ],
)
def test_text_that_is_not_proper_yaml_is_refused_with_its_line(text: str, line: str, tmp_path: Path) -> None:
    message = refusal(text, tmp_path)
    assert line in message
    assert "YAML" in message


def test_a_repeated_key_is_named(tmp_path: Path) -> None:
    assert "'gamma' appears twice" in refusal("training: {gamma: 0.9, gamma: 0.9}", tmp_path)


def test_a_merged_mapping_may_be_overridden(tmp_path: Path) -> None:
    text = "training: &base {gamma: 0.9, n_steps: 64}\n"
    merged = parse_yaml(text + "other: {<<: *base, gamma: 0.5}", "file")
    assert merged["other"] == {"gamma": 0.5, "n_steps": 64}


def test_files_that_cannot_be_read_are_usage_errors(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x80")
    for path in (tmp_path / "missing.yaml", tmp_path, tmp_path / "binary.yaml"):
        with pytest.raises(UsageError) as caught:
            read_config_file(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "# nothing\n", "env:\ntraining:\n", "training: {}\n"])
def test_empty_files_and_sections_give_the_defaults(text: str, tmp_path: Path) -> None:
    assert load(text, tmp_path) == build_config({}, "nothing")


# --- Aliases ---


@pytest.mark.parametrize(
    "text",
    [
        "env: {num_envs: 8}",
        "training: {num_envs: 8}",
        "hardware: {num_envs: 8}",
        "training: {num_envs: 8}\nenv: {num_envs: 8}",
        "training: {num_envs: 8}\nhardware: {num_envs: 8}",
        "env:\ntraining: {num_envs: 8}",
        "env: {id: coinrun}\ntraining: {num_envs: 8}",
    ],
)
def test_the_number_of_environments_is_accepted_in_either_place(text: str, tmp_path: Path) -> None:
    assert load(text, tmp_path).env.num_envs == 8


@pytest.mark.parametrize("section", ["training", "hardware"])
def test_device_and_threads_are_accepted_in_either_place(section: str, tmp_path: Path) -> None:
    config = load(f"{section}: {{device: cpu, num_threads: 3}}", tmp_path)
    assert (config.hardware.device, config.hardware.num_threads) == ("cpu", 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("training: {num_envs: 8}\nenv: {num_envs: 4}", ["training.num_envs = 8", "env.num_envs = 4"]),
        ("training: {num_envs: 8}\nhardware: {num_envs: 4}", ["num_envs = 8", "num_envs = 4"]),
        (
            "training: {num_threads: 1}\nhardware: {num_threads: 2}",
            ["training.num_threads = 1", "hardware.num_threads = 2"],
        ),
    ],
)
def test_aliases_that_contradict_each_other_are_refused(text: str, words: list[str], tmp_path: Path) -> None:
    message = refusal(text, tmp_path)
    assert "contradicts" in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("text", ["training: {num_envs: -3}", "env: 5\ntraining: {num_envs: 8}"])
def test_a_wrong_value_under_an_alias_is_still_refused(text: str, tmp_path: Path) -> None:
    assert "env" in refusal(text, tmp_path)


# --- Environments ---


@pytest.mark.parametrize("game", GAMES)
def test_every_form_of_a_games_name_is_one_environment(game: str) -> None:
    for form in (game, f"procgen-{game}-v0", f"procgen:procgen-{game}-v0"):
        assert EnvConfig.model_validate({"id": form}).id == f"procgen-{game}-v0"


@pytest.mark.parametrize("env_id", ["CartPole-v1", "gym:CartPole-v1", "procgen-pong-v0", "coinrun-v5"])
def test_other_ids_stay_as_they_are(env_id: str) -> None:
    assert EnvConfig.model_validate({"id": env_id}).id == env_id


def test_there_are_sixteen_games() -> None:
    assert len(GAMES) == len(set(GAMES)) == 16


@pytest.mark.parametrize("mode", GAMES_WITH_MODE)
def test_a_mode_is_accepted_for_the_games_that_have_it_and_refused_for_the_others(mode: str) -> None:
    for game in GAMES:
        data = {"env": {"id": game, "distribution_mode": mode}}
        if game in GAMES_WITH_MODE[mode]:
            assert build_config(data, "test").env.distribution_mode == mode
            continue
        with pytest.raises(UsageError) as caught:
            build_config(data, "test")
        message = str(caught.value)
        assert f"distribution_mode = {mode!r}" in message and game in message and "\n" not in message
        assert all(other in message for other in GAMES_WITH_MODE[mode])


def test_training_is_on_200_levels_unless_said_otherwise(tmp_path: Path) -> None:
    assert load("", tmp_path).env.num_levels == 200
    assert load("env: {num_levels: null}", tmp_path).env.num_levels == 200
    assert load("env: {num_levels: 0}", tmp_path).env.num_levels == 0
    assert EnvConfig().num_levels == 200


def test_exploration_has_its_one_level_and_no_number_of_levels(tmp_path: Path) -> None:
    env = load("env: {distribution_mode: exploration}", tmp_path).env
    assert env.num_levels is None and env.start_level == 0
    load("env: {distribution_mode: exploration, num_levels: null, start_level: 0}", tmp_path)


def test_gymnasium_environments_take_keyword_arguments(tmp_path: Path) -> None:
    env = load("env: {id: CartPole-v1, kwargs: {sutton_barto_reward: true}}", tmp_path).env
    assert env.kwargs == {"sutton_barto_reward": True}


@pytest.mark.parametrize(
    ("num_envs", "expected"), [(1, 1), (7, 7), (8, 8), (12, 6), (32, 8), (64, 8), (11, 1), (9, 3), (30, 6)]
)
def test_groups_are_the_largest_divisor_up_to_eight(num_envs: int, expected: int, tmp_path: Path) -> None:
    config = load(f"env: {{num_envs: {num_envs}}}\ntraining: {{batch_size: 1}}", tmp_path)
    assert config.group_size == expected
    assert num_envs % expected == 0
    assert not any(num_envs % size == 0 for size in range(expected + 1, min(num_envs, 8) + 1))
    assert largest_divisor(num_envs, 8) == expected


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_the_default_group_does_not_depend_on_the_number_of_processes(workers: int, tmp_path: Path) -> None:
    parallel = load(f"mode: parallel\nenv: {{num_envs: 8}}\nparallel: {{num_workers: {workers}}}", tmp_path)
    nodes = f"mode: distributed\nenv: {{num_envs: 8}}\ncluster: {{num_nodes: {workers}, num_workers: 1}}"
    assert parallel.group_size == load(nodes, tmp_path).group_size == 8


def test_processes_can_share_a_group_that_is_larger_than_their_environments(tmp_path: Path) -> None:
    text = "mode: parallel\nenv: {num_envs: 32, group_size: 32}\nparallel: {num_workers: 8}"
    assert (load(text, tmp_path).envs_per_process, load(text, tmp_path).group_size) == (4, 32)


def test_a_group_size_that_is_given_is_kept_also_above_eight(tmp_path: Path) -> None:
    assert load("env: {num_envs: 32, group_size: 16}", tmp_path).group_size == 16


# --- The object ---


@pytest.mark.parametrize(
    "text",
    [
        "",
        "env: {distribution_mode: exploration}",
        "env: {id: CartPole-v1, kwargs: {a: 1e-9, b: [1, x], c: null}}\nmodel: {mlp_sizes: [8, 4]}",
        "training: {learning_rate: 1.2345678901234567e-5, seed: 9223372036854775807, total_timesteps: null}",
        "training: {duration_hours: 0.1, target_kl: 0.03}\nhardware: {num_threads: 2}",
        "logging: {log_dir: 'a: b # c', checkpoint_dir: \"ünïcode\"}",
    ],
)
def test_a_configuration_that_is_written_out_loads_as_the_same_configuration(
    text: str, tmp_path: Path
) -> None:
    config = load(text, tmp_path)
    written = dump_config(config)
    assert load(written, tmp_path) == config
    assert dump_config(load(written, tmp_path)) == written
    assert yaml.safe_load(written).keys() == Config.model_fields.keys()  # everything, for any reader


def test_nothing_can_be_changed_afterwards() -> None:
    config = build_config({}, "nothing")
    with pytest.raises(ValidationError, match="frozen"):
        config.training.gamma = 0.5
    with pytest.raises(ValidationError, match="frozen"):
        config.env.procgen.center_agent = False


def test_timesteps_per_update_are_steps_times_environments(tmp_path: Path) -> None:
    config = load("env: {num_envs: 6}\ntraining: {n_steps: 7, batch_size: 42}", tmp_path)
    assert config.timesteps_per_update == 42  # and a minibatch as large as the rollout is possible


def test_flat_settings_have_every_leaf_by_its_dotted_key() -> None:
    flat = flat_settings(build_config({"env": {"id": "CartPole-v1", "kwargs": {"deep": {"er": 1}}}}, "test"))
    assert flat["training.gamma"] == 0.999
    assert flat["env.procgen.center_agent"] is True
    assert flat["env.kwargs.deep.er"] == 1
    assert not any(isinstance(value, dict) and value for value in flat.values())


# --- Setting single values ---


def test_values_are_set_by_dotted_keys_and_aliases() -> None:
    data = {"training": None, "env": {"num_envs": 4}}
    set_value(data, "training.gamma", 0.5, "flag")
    set_value(data, "env.procgen.center_agent", False, "flag")
    set_value(data, "training.num_envs", 8, "flag")  # over the file's value: what is set later wins
    assert data == {"training": {"gamma": 0.5}, "env": {"num_envs": 8, "procgen": {"center_agent": False}}}


@pytest.mark.parametrize("key", ["gamma", "", ".", "training.", ".gamma", "training..gamma", "algorithm.x"])
def test_a_key_that_names_no_setting_is_refused(key: str) -> None:
    with pytest.raises(UsageError) as caught:
        set_value({"algorithm": "ppo"}, key, 1, "--set")
    assert "\n" not in str(caught.value) and "--set" in str(caught.value)
