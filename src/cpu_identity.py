"""Which processor this is, beyond its name: virtual machines of different processors often share one."""

from __future__ import annotations

from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")
IDENTITY = ("cpu family", "model", "stepping")
ARM_IDENTITY = ("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision")


def _first_values(cpuinfo: Path) -> dict[str, str]:
    """What the system says of the first core; {} where it says nothing."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return {}  # not Linux
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found


def cpu_flags(cpuinfo: Path = CPUINFO) -> tuple[str, ...]:
    """Those of the processor's abilities that matter here, as the system names them; () where it does not."""
    values = _first_values(cpuinfo)
    named = set((values.get("flags") or values.get("Features") or "").split())
    return tuple(flag for flag in CPU_FLAGS if flag in named)


def cpu_identity(cpuinfo: Path = CPUINFO) -> str:
    """`cpu family 25, model 17, stepping 1`, or what ARM has instead; nothing where the system does not
    say."""
    values = _first_values(cpuinfo)
    return ", ".join(f"{name} {values[name]}" for name in (*IDENTITY, *ARM_IDENTITY) if name in values)
