"""The package's structure: imports point downwards, have no circle, and files and functions are short."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import rlcb
from rlcb.paths import PROJECT

PACKAGE = PROJECT / "src" / "rlcb"
GROUND = "ground"
FLOORS = (
    ("api", "__main__"),
    ("cli",),
    ("study", "profiling", "tuning"),
    ("comparison", "evaluation", "cluster"),
    ("parallel", "plots"),
    ("training",),
    ("rl",),
    ("kernels", "envs"),
    ("machine",),
    ("processes",),
    ("config",),
    (GROUND,),
)
"""Folders from the top floor to the ground. A folder imports only from lower floors and from itself."""
FLOOR = {folder: number for number, folders in enumerate(FLOORS) for folder in folders}
LINES_OF_A_FILE, LINES_OF_A_FUNCTION = 400, 50


def module_name(path: Path, package: Path = PACKAGE) -> str:
    """`training/run.py` is `training.run`; `rl/__init__.py` is `rl`; the package's own is empty."""
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imported(source: str, modules: set[str]) -> Iterator[str]:
    """The modules of rlcb that `source` imports, anywhere in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rlcb":
            base = (node.module or "").removeprefix("rlcb").removeprefix(".")
            for alias in node.names:
                name = f"{base}.{alias.name}".lstrip(".")
                yield name if name in modules else base
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "rlcb":
                    yield alias.name.removeprefix("rlcb").removeprefix(".")


def folder_of(module: str) -> str:
    """The folder of a module; files beside the folders are the ground."""
    top = module.split(".")[0]
    return top if top in FLOOR else GROUND


def upward(imports: dict[str, set[str]]) -> list[str]:
    """The imports that do not point to a lower floor."""
    return [
        f"{name} imports {other}"
        for name, others in sorted(imports.items())
        for other in sorted(others)
        if folder_of(name) != folder_of(other) and FLOOR[folder_of(other)] <= FLOOR[folder_of(name)]
    ]


def circle(imports: dict[str, set[str]]) -> list[str]:
    """Modules of which each imports the next and the last the first; none if there is no such circle."""
    left = dict(imports)
    while True:
        below = {name for name, needs in left.items() if not needs & left.keys()}
        if not below:
            break
        left = {name: needs for name, needs in left.items() if name not in below}
    path: list[str] = sorted(left)[:1]
    while path and path[-1] not in path[:-1]:
        path.append(sorted(left[path[-1]] & left.keys())[0])
    return path[path.index(path[-1]) :] if path else []


def package_imports() -> dict[str, set[str]]:
    """What each module imports. Everybody may import the package itself, which imports nothing at load."""
    names = set(MODULES)
    return {
        name: set(imported(path.read_text(encoding="utf-8"), names)) - {name, ""}
        for name, path in MODULES.items()
        if name
    }


def test_the_package_is_the_one_of_this_project() -> None:
    assert Path(rlcb.__file__).resolve() == PACKAGE / "__init__.py"
    assert len(MODULES) > 100


def test_imports_are_found_in_every_form() -> None:
    source = "import rlcb.cpu\nfrom rlcb.rl import ppo, gae\ndef f():\n    from rlcb.rl.ppo import update\n"
    assert list(imported(source, {"cpu", "rl", "rl.ppo", "rl.gae"})) == ["cpu", "rl.ppo", "rl.gae", "rl.ppo"]


def test_an_upward_import_is_found() -> None:
    assert upward({"rl.ppo": {"rl.gae", "errors"}, "rl.gae": {"training.run"}}) == [
        "rl.gae imports training.run"
    ]
    assert upward({"errors": {"rl.ppo"}, "study.study": {"profiling.advice"}}) == [
        "errors imports rl.ppo",
        "study.study imports profiling.advice",
    ]


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_every_folder_has_a_floor() -> None:
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} <= FLOOR.keys()


def test_imports_point_downwards() -> None:
    assert upward(package_imports()) == []


def test_imports_have_no_circle() -> None:
    imports = package_imports()
    assert "rl.models" in imports["rl.learner"]
    assert circle(imports) == []


def test_files_and_functions_are_short() -> None:
    long = []
    for name, path in MODULES.items():
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > LINES_OF_A_FILE:
            long.append(name)
        for node in ast.walk(ast.parse(text)):
            lines = getattr(node, "end_lineno", 0) - getattr(node, "lineno", 0) + 1
            if isinstance(node, ast.FunctionDef) and lines > LINES_OF_A_FUNCTION:
                long.append(f"{name}.{node.name}")
    assert long == []
