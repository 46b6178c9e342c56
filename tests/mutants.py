"""Checks the tests of the learning: each single-point change of its code must make a test fail.

    python -m tests.mutants              all modules of MODULES
    python -m tests.mutants gae vtrace   some of them

Prints every change that no test notices. tests/mutants.md explains those that may stay.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

PROJECT = Path(__file__).resolve().parent.parent
MODULES = {
    "gae": ("test_gae",),
    "vtrace": ("test_vtrace",),
    "losses": ("test_losses",),
    "reward_scaler": ("test_reward_scaler",),
    "learner": ("test_ppo", "test_impala", "test_activation_cache"),
    "ppo": ("test_ppo", "test_ppo_nodes"),
    "a2c": ("test_activation_cache",),
    "impala": ("test_impala", "test_impala_learning"),
    "collector": ("test_collector",),
}
"""Modules of rlcb.rl and the files in tests/rl that hold them."""
SECONDS = 60.0  # a change that makes the tests run longer counts as noticed

BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


def changed(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that may stand in the place of `node`."""
    new = copy.deepcopy(node)
    if isinstance(new, (ast.BinOp, ast.AugAssign)) and type(new.op) in BINARY:
        new.op = BINARY[type(new.op)]()
        yield new
    elif isinstance(new, ast.Compare) and type(new.ops[0]) in COMPARED:
        new.ops[0] = COMPARED[type(new.ops[0])]()
        yield new
    elif isinstance(new, ast.BoolOp):
        new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
        yield new
    elif isinstance(new, ast.UnaryOp):
        yield new.operand
    elif isinstance(new, (ast.If, ast.IfExp)):
        new.test = ast.UnaryOp(ast.Not(), new.test)
        yield new
    elif isinstance(new, ast.Constant) and isinstance(new.value, bool):
        yield ast.Constant(not new.value)
    elif isinstance(new, ast.Constant) and isinstance(new.value, (int, float)):
        yield ast.Constant(new.value + 1)
    elif isinstance(new, ast.Expr) and isinstance(new.value, ast.Call):
        yield ast.Pass()


class Places(ast.NodeTransformer):
    """Visits code (no annotations, no docstrings) and puts the change number `wanted` into it."""

    def __init__(self, wanted: int) -> None:
        self.wanted, self.count = wanted, 0
        self.line, self.text = 0, ""

    def visit(self, node: ast.AST) -> ast.AST:
        for new in changed(node):
            if self.count == self.wanted:
                self.line = getattr(node, "lineno", 0)
                self.text = f"{first_line(node)}  ->  {first_line(new)}"
                self.count += 1
                return ast.copy_location(new, node)
            self.count += 1
        return super().visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.body = [self.visit(each) for each in node.body]
        node.args = self.visit(node.args)
        return node


def first_line(node: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(node)).splitlines()[0]


def mutant(source: str, number: int) -> tuple[ast.Module, int, str] | None:
    """The code with its change `number`, the line of the change, and the change in words; None past the
    last."""
    places = Places(number)
    tree = places.visit(ast.parse(source))
    if places.count <= number:
        return None
    assert isinstance(tree, ast.Module)
    return ast.fix_missing_locations(tree), places.line, places.text


class Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from changed code."""

    def __init__(self, name: str, tree: ast.Module) -> None:
        self.name, self.tree = name, tree

    def find_spec(
        self, name: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self) if name == self.name else None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.tree, self.name, "exec"), module.__dict__)


def run_tests(files: Sequence[Path]) -> int:
    import pytest

    flags = [
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:timeout",
        "-o",
        "addopts=--import-mode=importlib",
    ]
    return int(pytest.main([*flags, "-o", "timeout=0", *map(str, files)]))


def is_noticed(name: str, tree: ast.Module, files: Sequence[Path]) -> bool:
    """Run the tests against changed code in a fork of this process, which has loaded torch."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        sys.meta_path.insert(0, Loader(name, tree))
        code = 1
        with contextlib.suppress(BaseException):
            code = run_tests(files)
        os._exit(0 if code == 0 else 1)
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status != 0
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def check(module: str) -> tuple[int, list[str]]:
    """Return how many changes of a module there are, and in words those that its tests do not notice."""
    path = PROJECT / "src/rlcb/rl" / f"{module}.py"
    files = [PROJECT / "tests/rl" / f"{name}.py" for name in MODULES[module]]
    source, survivors, number = path.read_text(encoding="utf-8"), [], 0
    unchanged = ast.parse(source)
    if is_noticed(f"rlcb.rl.{module}", unchanged, files):
        raise SystemExit(f"the tests of {module} fail without any change")
    while (found := mutant(source, number)) is not None:
        tree, line, text = found
        if not is_noticed(f"rlcb.rl.{module}", tree, files):
            survivors.append(f"{module}.py:{line}: {text}")
            print(survivors[-1], flush=True)
        number += 1
    return number, survivors


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modules", nargs="*", choices=[*MODULES, []], help="default: all")
    modules = parser.parse_args().modules or list(MODULES)
    os.chdir(PROJECT)
    sys.path[:0] = [str(PROJECT), str(PROJECT / "src")]
    import gymnasium  # noqa: F401 - loaded once, for all forks
    import hypothesis  # noqa: F401
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import torch

    torch.set_num_threads(1)
    for module in modules:
        start = time.monotonic()
        count, survivors = check(module)
        seconds = time.monotonic() - start
        print(f"{module}: {count - len(survivors)} of {count} changes noticed ({seconds:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
