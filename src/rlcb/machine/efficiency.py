"""What share of this machine's limit a run reached, where a profile of the machine is at hand."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

from rlcb.config.config import Config
from rlcb.errors import UsageError
from rlcb.machine.limits import NotMeasured, limit, machine_limit, why_not_for
from rlcb.machine.profile import Profile, profiles_folder, read_profile, why_not_here
from rlcb.paths import PROJECT


def find_profile(folder: Path, config: Config) -> tuple[Path, Profile] | str | None:
    """The newest profile of a folder that holds for a run here; why the newest one does not; None without
    any.

    A profile that would say something false is never taken: one of another processor or number of cores, of
    another torch, another network, another game or other options of it.
    """
    fitting: list[tuple[str, Path, Profile]] = []
    reasons: list[tuple[str, str]] = []
    for path in sorted(folder.glob("*.json")):
        try:
            profile = read_profile(path)
        except UsageError as error:
            reasons.append(("", str(error)))
            continue
        why = why_not_here(profile, installed_torch()) or why_not_for(profile, config)
        if why is None:
            fitting.append((profile.measured_at, path, profile))
        else:
            reasons.append((profile.measured_at, f"{shown(path)} {why}"))
    if fitting:
        _, path, profile = max(fitting, key=lambda each: each[:2])
        return path, profile
    return max(reasons)[1] if reasons else None


def shown(path: Path) -> str:
    """A path as it stands in records: within the project without the way there."""
    return str(path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path)


def installed_torch() -> str | None:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def efficiency_of(config: Config, fps: float | None, threads: int | None) -> dict[str, Any]:
    """`efficiency` and `efficiency_note` for the record of a run that made `fps`, with so many threads in its
    first process.

    `efficiency` is null without a profile that holds for the run; the note then says why, or is null too
    where there is no profile at all. `limit_fps` is of the run's mode, `machine_limit_fps` of all cores with
    a thread each, which a sequential run cannot reach.
    """
    found = find_profile(profiles_folder(), config)
    if not isinstance(found, tuple):
        return {"efficiency": None, "efficiency_note": found}
    path, profile = found
    if not fps or threads is None:
        return {"efficiency": None, "efficiency_note": "the run has no speed"}
    try:
        most, whole = limit(profile, config, threads), machine_limit(profile, config)
    except NotMeasured as reason:
        return {"efficiency": None, "efficiency_note": f"{shown(path)} {reason}"}
    note = None
    if config.training.target_kl is not None:
        note = "training.target_kl may end updates early: the limit is that of all epochs"
    return {
        "efficiency": {
            "share": round(fps / most, 4),
            "limit_fps": round(most, 2),
            "machine_limit_fps": round(whole, 2),
            "profile": shown(path),
            "measured_at": profile.measured_at,
            "git_commit": profile.git_commit,
        },
        "efficiency_note": note,
    }


def describe_efficiency(record: dict[str, Any]) -> str | None:
    """The line of a run's summary; None where there is nothing to say."""
    efficiency, note = record.get("efficiency"), record.get("efficiency_note")
    if efficiency is None:
        return None if note is None else f"not known: {note}"
    return (
        f"{efficiency['share']:.0%} of this machine's limit, {efficiency['limit_fps']:,.0f} FPS "
        f"({Path(efficiency['profile']).name})"
    )
