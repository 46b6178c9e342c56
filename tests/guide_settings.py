"""The settings as a guide names them: every key of rlcb.config.settings with its values and default."""

from __future__ import annotations

from typing import Any

from rlcb.config.config import Config


def settings() -> dict[str, tuple[str, Any]]:
    """Every setting by its dotted key: (what it may be, in words; the default)."""
    schema = Config.model_json_schema()
    return _walk(schema, schema["$defs"], "")


def _walk(schema: dict[str, Any], definitions: dict[str, Any], prefix: str) -> dict[str, tuple[str, Any]]:
    found: dict[str, tuple[str, Any]] = {}
    for key, entry in schema["properties"].items():
        reference = entry.get("$ref") or next(
            (e["$ref"] for e in entry.get("anyOf", ()) if "$ref" in e), None
        )
        if reference is not None:
            section = definitions[reference.removeprefix("#/$defs/")]
            found |= _walk(section, definitions, f"{prefix}{key}.")
        else:
            found[prefix + key] = (rule(entry), entry["default"])
    return found


def rule(entry: dict[str, Any]) -> str:
    """What values a setting takes, in words."""
    if "anyOf" in entry:
        kinds = [each for each in entry["anyOf"] if each["type"] != "null"]
        if len(kinds) > 1 and len(kinds) < len(entry["anyOf"]):
            return f"{', '.join(map(rule, kinds))}, or `null`"
        if len(kinds) > 1:
            return " or ".join(map(rule, kinds))
        return f"{rule(kinds[0])}, or `null`"
    if "enum" in entry:
        return ", ".join(f"`{value}`" for value in entry["enum"])
    if "const" in entry:
        return f"`{entry['const']}`"
    kind = entry["type"]
    if kind == "array":
        return f"list of {rule(entry['items']).replace('whole number', 'whole numbers')}"
    if kind in ("integer", "number"):
        return ("whole number" if kind == "integer" else "number") + _limits(entry)
    return {"boolean": "`true`, `false`", "string": "text", "object": "keys and values"}[kind]


def _limits(entry: dict[str, Any]) -> str:
    low = entry.get("ge", entry.get("minimum"))
    high = entry.get("le", entry.get("maximum"))
    if entry.get("exclusiveMinimum") is not None:
        return f" > {entry['exclusiveMinimum']}"
    if low is None and high is None:
        return ""
    if high is None or high >= 2**31:
        return f" ≥ {low}"
    return f", {low} to {high:,}"
