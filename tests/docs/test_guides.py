"""The guides are true: their commands run, print what is shown, and leave the files that are described.

How a guide is read is tests/guide_blocks.py, how its commands are run tests/guide_walk.py. Tables that need
no run are compared with the program by tests/test_guide_tables.py.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlcb.comparison.metrics import METRICS
from rlcb.parallel.calibration import Calibration
from tests import guide_blocks as guide
from tests.guide_programs import call, parse, program_of
from tests.guide_walk import Walk, inside
from tests.runs import PROJECT, record, rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

GUIDE, REFERENCE, BENCHMARKING = (
    PROJECT / f"docs/{name}.md" for name in ("guide", "reference", "benchmarking")
)
# Their examples are run by tests/test_guide_examples.py.
WALKED = [each for each in guide.GUIDES if each.name != "CONTRIBUTING.md"]
# Runs of several processes that later commands read, and whose files are compared with the tables.
NEEDED = frozenset(f"runs/{name}" for name in ("a3c_parallel", "impala_parallel", "distributed"))
TEXTS = [*guide.GUIDES, PROJECT / "CHANGELOG.md"]
LANGUAGES = {"bash", "console", "text", "python", "yaml", "diff"}
LABEL = re.compile(r"^ *([A-Za-z][A-Za-z0-9 /%-]*?)(?::| {2,})\s*\S")


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    """The commands of all guides are run in one folder, each once."""
    folder = tmp_path_factory.mktemp("clone")
    with inside(folder):
        yield Walk(folder, NEEDED)


def follow(walk: Walk, path: Path) -> None:
    """Run everything that a guide asks to run, in its order."""
    if path == REFERENCE:  # its examples read the runs of the guide
        follow(walk, GUIDE)
    section, printed = "", ""
    for block in guide.blocks(path):
        if block.language == "bash":
            section, printed = block.section, ""
            for command in guide.commands(block):
                walk.take(command)
                printed += walk.printed.get(command.text, "")
        elif block.language == "console":
            for command, lines in guide.exchanges(block):
                compare_exchange(command, lines)
        elif block.language == "text" and block.section == section and printed:
            compare_labels(block, printed)
        elif block.language == "python":
            walk.take_python(block)


def compare_exchange(command: guide.Command, lines: list[str]) -> None:
    """What a command prints is what the guide says, `...` standing for anything."""
    program = program_of(command.words)
    assert program is not None, command.place
    printed = call(program.name, program.flags).text.strip()
    wanted = ".*".join(map(re.escape, "\n".join(lines).strip().split("...")))
    assert re.fullmatch(wanted, printed, re.DOTALL), f"{command.place} prints {printed}"


def compare_labels(block: guide.Block, printed: str) -> None:
    """Every line of an output that begins with a name has it from the program, which still prints it."""
    names = {*labels(printed), *(metric.title for metric in METRICS)}  # tiny runs lack some figures
    for name in labels(block.text):
        assert name in names, f"{block.place}: no line begins with {name!r} any more"


def labels(text: str) -> list[str]:
    """What lines have before a colon or two spaces, numbers left out."""
    found = (LABEL.match(line) for line in text.splitlines())
    return [re.sub(r"\d[\d,.]*", "#", each[1]) for each in found if each]


@pytest.mark.parametrize("path", WALKED, ids=lambda path: path.name)
def test_commands_run_and_print_what_is_shown(walk: Walk, path: Path) -> None:
    follow(walk, path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("python train_timed.py --durration 1", "--durration"),
        ("python train_timed.py --set training.gama=1", "training.gama"),
        ("python train_parallel_timed.py --num-workers 3", "must be a multiple of"),
        ("python run_benchmark.py --algorithms dqn --dry-run", "dqn"),
        ("python evaluate.py --checkpoint nowhere.pt", "nowhere.pt"),
        ("torchrun --nnodes 2 train_ppo_distributed.py --nodes 2", "--nodes"),
        ("sbatch cluster/slurm.sh train_ppo_distributed.py", "cluster/slurm.sh"),
        ("python -m rlcb.cli.check_cluster --chek", "--chek"),
        ("make nothing", "nothing"),
        ("make plot LOGFILE=x", "LOGFILE"),
        ("cp nowhere.yaml here.yaml", "nowhere.yaml"),
        ("python train_dqn.py", "neither a program of the project"),
    ],
)
def test_a_command_that_has_gone_stale_is_noticed(walk: Walk, text: str, reason: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(reason)):
        walk.take(guide.Command(PROJECT / "README.md", 1, text))


@pytest.mark.parametrize("path", guide.GUIDES, ids=lambda path: path.name)
def test_programs_named_within_sentences_have_these_flags(path: Path) -> None:
    for command in guide.inline_commands(path):
        text = re.sub(r"\[[^\]]*\]|\.\.\.", "", command.text)
        text = re.sub(r"--duration H\b", "--duration 1", text)
        program = program_of(guide.Command(path, command.line, text).words)
        if program is not None and program.flags:
            parse(program)


@pytest.mark.parametrize("path", guide.GUIDES, ids=lambda path: path.name)
def test_every_block_says_what_it_is(path: Path) -> None:
    for block in guide.blocks(path):
        assert block.language in LANGUAGES, f"{block.place}: a block of {block.language or 'no language'}"


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for line, target in guide.links(path):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        assert there.exists(), f"{path.name}:{line}: {target}"
        if anchor:
            assert anchor in guide.anchors(there), f"{path.name}:{line}: no heading for {target}"


def test_every_page_is_a_guide_that_is_tested() -> None:
    assert {path for path in guide.GUIDES if path.parent.name == "docs"} == set(
        (PROJECT / "docs").glob("*.md")
    )


def fields(data: dict[str, Any], prefix: str = "") -> set[str]:
    """The fields of a file, as the guides name them."""
    found: set[str] = set()
    for key, value in data.items():
        name = "<phase>" if prefix.endswith("time_breakdown.") else "<split>" if prefix == "splits." else key
        if isinstance(value, dict) and key not in ("config", "calibration", "efficiency") and value:
            whole = prefix == "workers[]." and key == "time_breakdown"
            found |= {prefix + key} if whole else fields(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            found |= fields(value[0], f"{prefix}{name}[].")
        else:
            found.add(prefix + name)
    return found


def named_fields(section: str) -> set[str]:
    (rows_of_guide, *_) = guide.tables(REFERENCE, section)
    return {guide.code(row[0]) for row in rows_of_guide}


@pytest.fixture(scope="module")
def run_folders(walk: Walk) -> list[Path]:
    """Runs of all kinds that the guide has trained."""
    follow(walk, GUIDE)
    folders = [walk.folder / name for name in NEEDED] + [
        walk.folder / f"runs/{name}" for name in ("tracked", "ppo_sequential")
    ]
    assert {record(folder)["status"] for folder in folders} == {"completed"}
    return folders


def test_every_field_of_the_record_is_in_the_guide(run_folders: list[Path]) -> None:
    written = set.union(*(fields(record(folder)) for folder in run_folders))
    assert named_fields("benchmark_metrics.json") == written


def test_every_field_of_the_summary_is_in_the_guide_and_says_the_same(run_folders: list[Path]) -> None:
    (rows_of_guide,) = guide.tables(REFERENCE, "training_summary.json")
    for folder in run_folders:
        summary = json.loads((folder / "training_summary.json").read_text())
        assert {guide.code(name) for name, _ in rows_of_guide} == set(summary)
        for name, same in rows_of_guide:
            value: Any = record(folder)
            for part in guide.code(same).split("."):
                value = value[part]
            assert summary[guide.code(name)] == value


def test_every_key_of_the_metrics_is_in_the_guide(run_folders: list[Path]) -> None:
    written = {key for folder in run_folders for row in rows(folder) for key in row}
    assert named_fields("metrics.jsonl") == written
    columns = json.loads((run_folders[-1] / "metrics.json").read_text())
    assert set(columns) == set(rows(run_folders[-1])[0])
    for key in named_fields("Metrics explained"):
        assert key in written


def test_every_field_of_an_evaluation_is_in_the_guide(run_folders: list[Path]) -> None:
    evaluations = [json.loads(path.read_text()) for path in (run_folders[-1] / "evaluation").glob("*.json")]
    written = set.union(
        *({"hardware", "software"} | fields({**e, "hardware": 0, "software": 0}) for e in evaluations)
    )
    assert named_fields("Fields of an evaluation") == written - {"generalisation_gap"}


def test_the_calibration_is_recorded_as_the_guides_say() -> None:
    names = {field.name for field in dataclasses.fields(Calibration)}
    text = BENCHMARKING.read_text() + REFERENCE.read_text()
    for name in re.findall(r"impala\.calibration\.(\w+)", text):
        assert name in names
