"""The schemas, the model, the tables of fields and docs/policy.md say the same."""

import json
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from agentcgroup import config
from agentcgroup.policy import schema
from agentcgroup.policy.fields import FIELDS
from agentcgroup.policy.leaves import get, read_leaves
from agentcgroup.policy.model import Policy

CHECKOUT = Path(__file__).resolve().parents[2]
DOC = (CHECKOUT / "docs" / "policy.md").read_text()
TABLES: dict[str, Any] = {"policy": FIELDS, "config": config.FIELDS}
USED_UP = {"policy": {"extends"}, "config": set()}  # by the loader


def sections(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Every schema with properties of its own, outermost first."""
    inner = [part for child in data.values() if isinstance(child, dict) for part in sections(child)]
    return [data, *inner] if isinstance(data.get("properties"), dict) else inner


@pytest.mark.parametrize("name", ["policy", "config"])
def test_the_schema_is_one(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema.load(name))


@pytest.mark.parametrize("name", ["policy", "config"])
def test_every_key_of_the_schema_has_a_description_and_a_title(name: str) -> None:
    root = schema.load(name)
    for section in sections(root):
        for key, child in section["properties"].items():
            whole = {**root["$defs"].get(child.get("$ref", "").removeprefix("#/$defs/"), {}), **child}
            bare = [word for word in ("description", "title") if not whole.get(word)]
            assert key == "match" or not bare, f"{key} has no {bare}"
        assert section["additionalProperties"] is False


@pytest.mark.parametrize("name", ["policy", "config"])
def test_schema_and_table_have_the_same_keys(name: str) -> None:
    assert set(schema.leaves(name)) - USED_UP[name] == set(TABLES[name])


@pytest.mark.parametrize(("name", "model"), [("policy", Policy("x")), ("config", config.Config())])
def test_defaults_of_the_schema_are_those_of_the_model(name: str, model: Any) -> None:
    for key, entry in schema.leaves(name).items():
        if key in USED_UP[name]:
            continue
        nested: Any = entry["default"]
        for part in reversed(key.split(".")):
            nested = {part: nested}
        assert not list(schema.problems(nested, name)), f"the default of {key} is no valid value"
        assert read_leaves(TABLES[name], nested, []) == {key: get(model, key)}


def test_the_model_has_no_field_that_no_file_can_set() -> None:
    def paths(value: Any, prefix: str = "") -> set[str]:
        found: set[str] = set()
        for entry in fields(value):
            child = getattr(value, entry.name)
            deeper = is_dataclass(child) and entry.name in ("memory", "cpu", "io", "network", "call", "records")
            found |= paths(child, f"{prefix}{entry.name}.") if deeper else {prefix + entry.name}
        return found

    assert paths(Policy("x")) - set(FIELDS) == {"name", "source", "provenance"}


def rows() -> dict[str, list[str]]:
    """The table rows of the document by the key in their first cell."""
    lines = [line for line in DOC.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return {cell[0].strip("`"): cell for cell in cells}


def written(value: Any) -> str:
    """A default as a policy file would have it."""
    if isinstance(value, bool):
        return str(value).lower()
    if value in ("", [], {}):
        return "empty"
    return "[" + ", ".join(value) + "]" if isinstance(value, list) else str(value)


@pytest.mark.parametrize("name", ["policy", "config"])
def test_the_document_lists_every_key_with_its_default(name: str) -> None:
    for key, entry in schema.leaves(name).items():
        row = rows().get(key)
        assert row is not None, f"docs/policy.md has no row for {key}"
        if "default" in entry and key != "shells":
            assert row[2] == f"`{written(entry['default'])}`", f"the default of {key}"
        assert len(row[3]) > 10


@pytest.mark.parametrize("key", ["rbps", "wbps", "riops", "wiops", "match", "hint", "as"])
def test_the_document_explains_the_keys_of_list_items(key: str) -> None:
    assert f"`{key}`" in DOC


def test_the_document_lists_no_key_that_is_gone() -> None:
    known = {*schema.leaves("policy"), *schema.leaves("config")}
    assert set(rows()) <= known


def test_examples_of_the_document_are_valid(tmp_path: Path) -> None:
    from agentcgroup.policy.load import load_file

    examples = re.findall(r"```yaml\n# /etc/agentcgroup/policies.d/(\S+)\n(.*?)```", DOC, re.DOTALL)
    assert len(examples) >= 2
    for name, text in examples:
        (tmp_path / name).write_text(text)
        load_file(tmp_path / name, [CHECKOUT / "oci-config" / "policies.d"])


def test_the_commented_configuration_shows_every_key_with_its_default(tmp_path: Path) -> None:
    text = (CHECKOUT / "oci-config" / "agentcgroup.yaml").read_text()
    shown = tmp_path / "agentcgroup.yaml"
    shown.write_text("".join(line[1:] if re.match(r"#(  )?\w+:", line) else line for line in text.splitlines(True)))
    loaded = config.load(shown)
    assert loaded == config.Config()
    assert [key for key, place in loaded.provenance.items() if place == "default"] == []


def test_schemas_are_json_that_other_tools_can_read() -> None:
    for path in (CHECKOUT / "oci-config" / "schemas").glob("*.json"):
        assert json.loads(path.read_text())["$id"].startswith("urn:agentcgroup:")
