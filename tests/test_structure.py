"""How the package is built: imports point downwards, files are short, the loop knows nobody above it."""

from __future__ import annotations

import ast
from pathlib import Path

from rlcb.paths import PROJECT

SOURCE = {path.stem: path for path in (PROJECT / "src").glob("*.py") if path.stem != "__init__"}
LOOP = ("trainer", "collector", "learner", "ppo", "a2c", "impala", "models", "buffer", "envs", "procgen_env")
ABOVE = (
    "cli",
    "study",
    "comparison",
    "report",
    "evaluation",
    "profiling",
    "supervisor",
    "cluster_",
    "installation",
)
LINES_OF_A_FILE, LINES_OF_A_FUNCTION = 300, 50


def is_entry(node: ast.stmt) -> bool:
    """Whether it is `if __name__ == "__main__":`, which runs only where nobody imports the module."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def imported(path: Path) -> set[str]:
    """The modules of src that a module imports, anywhere but in its entry."""
    found: set[str] = set()
    body = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if not is_entry(node)]
    for node in (each for statement in body for each in ast.walk(statement)):
        if isinstance(node, ast.ImportFrom) and node.module == "src":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("src."):
            found.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("src.")}
    return found


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


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_imports_go_one_way() -> None:
    imports = {name: imported(path) for name, path in SOURCE.items()}
    assert "models" in imports["learner"]  # they are seen at all
    assert circle(imports) == []


def test_the_loop_knows_nobody_above_it() -> None:
    upwards = [
        f"{name} imports {other}"
        for name in LOOP
        for other in sorted(imported(SOURCE[name]))
        if other.startswith(ABOVE)
    ]
    assert upwards == []


def test_files_and_functions_are_short() -> None:
    long = []
    for name, path in SOURCE.items():
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > LINES_OF_A_FILE:
            long.append(name)
        for node in ast.walk(ast.parse(text)):
            lines = getattr(node, "end_lineno", 0) - getattr(node, "lineno", 0) + 1
            if isinstance(node, ast.FunctionDef) and lines > LINES_OF_A_FUNCTION:
                long.append(f"{name}.{node.name}")
    assert long == []
