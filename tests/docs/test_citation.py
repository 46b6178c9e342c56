"""CITATION.cff is valid and says what pyproject.toml says."""

from __future__ import annotations

import re

import yaml

from tests.runs import PROJECT

# The keys that the schema of version 1.2.0 requires, and those that the file uses of the others.
REQUIRED = {"authors", "cff-version", "message", "title"}
OTHERS = {"abstract", "keywords", "license", "type", "version"}


def test_the_citation_agrees_with_the_package() -> None:
    found = yaml.safe_load((PROJECT / "CITATION.cff").read_text(encoding="utf-8"))
    package = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")

    def value(key: str) -> str:
        text = re.search(rf"(?m)^{key} = (.*)$", package)
        assert text is not None, key
        return text[1]

    assert found.keys() >= REQUIRED and found.keys() <= REQUIRED | OTHERS
    assert found["cff-version"] == "1.2.0" and found["type"] == "software"
    assert f'"{found["version"]}"' == value("version") and f'"{found["license"]}"' == value("license")
    assert f'[{{ name = "{found["authors"][0]["name"]}" }}]' == value("authors")
    assert str(found["keywords"]).replace("'", '"') == value("keywords")
    assert found["title"] in (PROJECT / "README.md").read_text(encoding="utf-8")
