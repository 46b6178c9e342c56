"""perf/results/peers.json: the rounds that were kept, of one machine and, case by case, of one program."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from perf.measure import RESULTS
from perf.peers.cases import Case
from perf.peers.report import report, require_marks, write_between_marks
from rlcb.cpu import describe_machine
from rlcb.errors import RunError, UsageError
from rlcb.files import write_json
from rlcb.paths import PROJECT
from rlcb.processes.machine_load import BUSY_PERCENT
from rlcb.software import describe_software

NAME = "peers"
DOCUMENT = PROJECT / "docs" / "peers.md"
CODE = (
    *("src/**/*.py", "src/**/*.cpp", "train*.py", "config/**/*.yaml"),
    *("perf/peers/programs/*.py", "perf/peers/cases.py"),
)
"""What the figures come from. The commit alone does not tell: writing the tables makes the checkout dirty."""


def code_fingerprint(root: Path = PROJECT) -> str:
    """Return a fingerprint of the content of the files in CODE."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in CODE for path in root.glob(pattern)):
        digest.update(f"{path.relative_to(root)}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


class Results:
    """Rounds by case, the code that they are of, and who did not run.

    `unavailable` is by side, for who cannot be installed here; `failed` by case and side, for who did not get
    through the last round.
    """

    def __init__(self) -> None:
        """Raises UsageError if the file is damaged."""
        self.path = RESULTS / f"{NAME}.json"
        keys = ("machine", "software", "rounds", "code", "unavailable", "failed")
        self.data: dict[str, Any] = {key: {} for key in keys}
        if self.path.exists():
            try:
                self.data |= json.loads(self.path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise UsageError(f"{self.path} cannot be read ({error}): move it away") from None

    def rounds(self, case: Case) -> list[Any]:
        found: list[Any] = self.data["rounds"].setdefault(case.name, [])
        return found

    def missing(self, case: Case, wanted: int) -> int:
        """Rounds that are still to be measured so that `wanted` have every side that any round has."""
        rounds: list[dict[str, Any]] = self.rounds(case)
        sides = {side for each in rounds for side in each}
        return max(0, wanted - sum(sides <= each.keys() for each in rounds))

    def forget(self, case: Case) -> None:
        for key in ("rounds", "code", "failed"):
            self.data[key].pop(case.name, None)

    def note_unavailable(self, cases: Iterable[Case], unavailable: Mapping[str, str]) -> None:
        """Take over why sides of these cases cannot run; what is known of other sides stays."""
        for side in {side for case in cases for side in case.sides}:
            self.data["unavailable"].pop(side, None)
        self.data["unavailable"] |= unavailable

    def require_same(self, cases: Iterable[Case]) -> None:
        """Rounds of different machines or versions do not belong into one table, nor those of different code
        into one median; `cases` are to be gone on with. Raises UsageError."""
        if not any(self.data["rounds"].values()):
            return
        now = {**describe_machine(), **describe_software()}
        before = {**self.data["machine"], **self.data["software"]}
        for key in ("cpu_model", "usable_cores", "python", "torch", "numpy", "procgen"):
            if before[key] != now[key]:
                raise UsageError(
                    f"{self.path} has rounds with {key} {before[key]}, and here it is {now[key]}: "
                    "move it away, or measure every case anew with --again"
                )
        code = code_fingerprint()
        for case in cases:
            if self.rounds(case) and self.data["code"].get(case.name) != code:
                raise UsageError(
                    f"{self.path} has rounds of {case.name} that were measured before the program was "
                    f"changed: measure it anew with --again --cases {case.name}"
                )

    def why_not_kept(self, case: Case, measured: Mapping[str, Any], code: str) -> str | None:
        """Why a round, begun with the program of fingerprint `code`, does not belong to those that there
        are; None if it does."""
        others = statistics.median(each["others_percent"] for each in measured.values())
        if others > BUSY_PERCENT:
            return f"other programs took {others:.0f} % of the processor"
        if code_fingerprint() != code:
            return "the program was changed meanwhile"
        for side in measured:
            old = next((each[side]["versions"] for each in self.rounds(case) if side in each), None)
            if old is not None and libraries(old) != libraries(measured[side]["versions"]):
                return f"{side} has other versions than in the rounds before; see --again"
        return None

    def add(self, case: Case, measured: Mapping[str, Any], failed: Mapping[str, str], code: str) -> None:
        """Keep a round and write the tables."""
        self.rounds(case).append(dict(measured))
        self.data["code"][case.name] = code
        self.data["failed"][case.name] = dict(failed)
        self.data |= {"machine": describe_machine(), "software": describe_software()}
        self.write()

    def write(self) -> None:
        """The figures, and the tables that they give. Raises UsageError or RunError."""
        require_marks(DOCUMENT)
        text = report(self.data)
        heading = "# The field, side by side: timesteps per second of whole training runs"
        try:
            RESULTS.mkdir(exist_ok=True)
            write_json(self.path, self.data)
            self.path.with_suffix(".md").write_text(f"{heading}\n\n{text}\n", encoding="utf-8")
            write_between_marks(DOCUMENT, text)
        except OSError as error:
            raise RunError(f"cannot write {self.path}: {error.strerror or error}") from error


def libraries(versions: Mapping[str, str]) -> dict[str, str]:
    """Versions without the commit, which changes with every text; the code has its fingerprint."""
    return {name: version for name, version in versions.items() if name != "git_commit"}
