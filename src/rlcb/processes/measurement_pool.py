"""A pool of processes that measure at the same time, so that the results are those of a busy machine.

The pool has one process for each core. Each makes a bench, an object whose methods measure something, and
then calls the methods that the main process names. The main process never loads torch.
"""

from __future__ import annotations

import importlib
import math
import multiprocessing
import time
from collections.abc import Callable, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any

from rlcb import cpu
from rlcb.errors import RunError, UsageError
from rlcb.processes.child_process import end_child, enter_child, start_child

ANSWER_SECONDS = 120.0
POLL_SECONDS = 0.1


class Measurers:
    """Context manager that starts the processes and ends them."""

    def __init__(
        self,
        count: int,
        bench: str,
        arguments: Sequence[Any],
        check_stop: Callable[[], None],
        tune_allocator: bool = True,
        limit_seconds: float = math.inf,
        advice: str = "",
    ) -> None:
        """`bench` names a class as `module:class`. Each process makes one with the seconds that importing the
        module took and with `arguments`.

        `check_stop` is called while the main process waits; an exception from it ends the measurement. All
        answers together may take `limit_seconds`. `advice` is added to the message of a failed measurement.
        """
        self.count = count
        self.setup = (bench, tuple(arguments), tune_allocator)
        self.check_stop = check_stop
        self.deadline = time.monotonic() + limit_seconds
        self.advice = advice
        self.processes: list[Any] = []
        self.connections: list[Connection] = []

    def __enter__(self) -> Measurers:
        context = multiprocessing.get_context("spawn")
        resource_tracker.ensure_running()  # starting it unblocks SIGINT and SIGTERM
        try:
            for _ in range(self.count):
                process, connection = start_child(context, serve, *self.setup)
                self.processes.append(process)
                self.connections.append(connection)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        for process, connection in zip(self.processes, self.connections, strict=True):
            end_child(process, connection)

    def ask(self, name: str, *arguments: Any, count: int | None = None) -> list[Any]:
        """Call the bench's method `name` in the first `count` processes (default: all) at the same time, and
        return their results.

        Raises UsageError or RunError with the message of the process that failed.
        """
        return self.ask_each(name, [arguments] * (count or self.count))

    def ask_each(self, name: str, arguments: Sequence[Sequence[Any]]) -> list[Any]:
        """Call the bench's method `name` with different arguments in each process; see `ask`."""
        asked = self.connections[: len(arguments)]
        for connection, words in zip(asked, arguments, strict=True):
            try:
                connection.send((name, tuple(words)))
            except OSError:
                raise self._failure(f"a process died before it could measure {name}") from None
        answers: dict[int, Any] = {}
        deadline = min(time.monotonic() + ANSWER_SECONDS, self.deadline)
        while len(answers) < len(asked):
            self.check_stop()
            if time.monotonic() > deadline:
                raise self._failure(f"measuring {name} took too long")
            waiting = [each for index, each in enumerate(asked) if index not in answers]
            for ready in wait(waiting, timeout=POLL_SECONDS):
                assert isinstance(ready, Connection)
                answers[asked.index(ready)] = self._answer(ready, name)
        return [answers[index] for index in range(len(asked))]

    def _answer(self, connection: Connection, name: str) -> Any:
        try:
            kind, content = connection.recv()
        except (EOFError, OSError):
            raise self._failure(f"a process died while it measured {name}") from None
        if kind == "usage":
            raise UsageError(content)
        if kind == "fault":
            raise self._failure(f"measuring {name}: {content}")
        return content

    def _failure(self, text: str) -> RunError:
        return RunError(text + self.advice)


def serve(connection: Connection, bench: str, arguments: tuple[Any, ...], tune_allocator: bool) -> None:
    """Run a process of the pool: call methods of the bench until the main process is gone."""
    enter_child()
    if tune_allocator:
        cpu.tune_allocator()
    cpu.set_thread_environment(1)
    module_name, class_name = bench.split(":")
    made: Any = None
    while True:
        try:
            name, words = connection.recv()
        except (EOFError, OSError):
            return
        try:
            if made is None:
                start = time.perf_counter()
                module = importlib.import_module(module_name)
                made = getattr(module, class_name)(time.perf_counter() - start, *arguments)
            answer = ("measured", getattr(made, name)(*words))
        except UsageError as error:
            answer = ("usage", str(error))
        except Exception as error:
            answer = ("fault", f"{type(error).__name__}: {error}")
        try:
            connection.send(answer)
        except OSError:
            return
