"""The share of this machine's limit that a run reached, if there is a profile of the machine."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

from rlcb.config.config import Config
from rlcb.errors import UsageError
from rlcb.machine.limits import NotMeasured, limit, machine_limit, mismatch_with_run
from rlcb.machine.profile import Profile, mismatch_with_machine, profiles_folder, read_profile
from rlcb.paths import shown_path


def find_profile(
    folder: Path, config: Config, kernels: str | None = None
) -> tuple[Path, Profile] | str | None:
    """Return the newest profile in `folder` that holds for a run on this machine.

    If none holds, return why the newest one does not, or None for an empty folder. A profile holds only for
    the same processor, number of cores, torch version, network, environment and environment options, and for
    the same kernels of the convolutions if `kernels` names those of the run.
    """
    fitting: list[tuple[str, Path, Profile]] = []
    reasons: list[tuple[str, str]] = []
    for path in sorted(folder.glob("*.json")):
        try:
            profile = read_profile(path)
        except UsageError as error:
            reasons.append(("", str(error)))
            continue
        why = mismatch_with_machine(profile, installed_torch()) or mismatch_with_run(profile, config)
        if why is None and kernels not in (None, profile.network.kernels):
            why = f"measured {profile.network.kernels} kernels, but this run uses {kernels} ones"
        if why is None:
            fitting.append((profile.measured_at, path, profile))
        else:
            reasons.append((profile.measured_at, f"{shown_path(path)} {why}"))
    if fitting:
        _, path, profile = max(fitting, key=lambda each: each[:2])
        return path, profile
    return max(reasons)[1] if reasons else None


def installed_torch() -> str | None:
    """Return torch's version without importing torch, or None if torch is not installed."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def efficiency_of(
    config: Config, fps: float | None, threads: int | None, kernels: str | None = None
) -> dict[str, Any]:
    """Return `efficiency` and `efficiency_note` for the record of a run.

    `fps` is the run's speed, `threads` the number of threads in its first process, and `kernels` computed its
    convolutions. `efficiency` is None
    unless a profile holds for the run; the note says why, or is None if there is no profile. `limit_fps` is
    the limit of the run's mode; `machine_limit_fps` assumes one thread on each core.
    """
    found = find_profile(profiles_folder(), config, kernels)
    if not isinstance(found, tuple):
        return {"efficiency": None, "efficiency_note": found}
    path, profile = found
    if not fps or threads is None:
        return {"efficiency": None, "efficiency_note": "the run has no speed"}
    try:
        limit_fps, machine_limit_fps = limit(profile, config, threads), machine_limit(profile, config)
    except NotMeasured as reason:
        return {"efficiency": None, "efficiency_note": f"{shown_path(path)} {reason}"}
    note = None
    if config.training.target_kl is not None:
        note = "training.target_kl may end updates early; the limit assumes all epochs"
    return {
        "efficiency": {
            "share": round(fps / limit_fps, 4),
            "limit_fps": round(limit_fps, 2),
            "machine_limit_fps": round(machine_limit_fps, 2),
            "profile": shown_path(path),
            "measured_at": profile.measured_at,
            "git_commit": profile.git_commit,
        },
        "efficiency_note": note,
    }


def describe_efficiency(record: dict[str, Any]) -> str | None:
    """Return the efficiency line of a run's summary, or None if there is nothing to say."""
    efficiency, note = record.get("efficiency"), record.get("efficiency_note")
    if efficiency is None:
        return None if note is None else f"not known: {note}"
    return (
        f"{efficiency['share']:.0%} of this machine's limit, {efficiency['limit_fps']:,.0f} FPS "
        f"({Path(efficiency['profile']).name})"
    )
