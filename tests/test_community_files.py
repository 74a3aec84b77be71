"""What agents and hosting sites read is true: links, versions, commands, notes of a release."""

import importlib
import importlib.util
import json
import re
import shlex

import pytest
import yaml

from grounded_attention import __version__
from grounded_attention.commands.main import COMMANDS, command_parser, find_command
from tests.helpers.commands import ROOT

PACKAGE = ROOT / "grounded_attention"
SKILL = ROOT / "skills" / "grounded-attention" / "SKILL.md"


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_llms_txt_lists_every_page_and_no_other():
    listed = re.findall(r"\]\(([^)]+)\)", read("llms.txt"))
    assert all((ROOT / page).is_file() for page in listed)
    assert {str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")} <= set(listed)
    assert re.match(r"# .+\n\n> ", read("llms.txt"))


def test_the_skill_can_be_installed_and_its_commands_parse():
    _, front, text = SKILL.read_text(encoding="utf-8").split("---\n", 2)
    about = yaml.safe_load(front)
    assert set(about) == {"name", "description"}
    assert about["name"] == SKILL.parent.name
    assert 50 < len(about["description"]) <= 1024
    [plugin] = json.loads(read("marketplace.json"))["plugins"]
    assert plugin["name"] == about["name"]
    assert ROOT / plugin["source"] == SKILL.parent
    lines = [line for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    assert len(lines) > 5
    for line in lines:
        name, rest = find_command(shlex.split(line)[1:])
        parser = command_parser(name)
        parser.parse_intermixed_args(rest)


def test_contributing_names_files_that_exist_and_what_is_in_them():
    table = read("CONTRIBUTING.md").partition("## Where to look")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", table, re.MULTILINE)[1:]
    assert len(rows) > 30
    for question, answer in rows:
        words = re.findall(r"`([^`]+)`", answer)
        files = []
        for word in (word for word in words if re.search(r"^[\w/]+\.\w+$", word) and not word.startswith("training.")):
            folders = [ROOT, PACKAGE, *(parent for file in files for parent in file.parents)]  # or beside another file
            folders += [PACKAGE / folder for folder in words if folder.endswith("/")]
            files.append(next((folder / word for folder in folders if (folder / word).is_file()), None))
            assert files[-1] is not None, (question, word)
        text = "".join(file.read_text(encoding="utf-8") for file in files)
        names = [word for word in words if word.isidentifier()] if files else []
        assert all(re.search(rf"\b{name}\b", text) for name in names), (question, names)


def test_the_table_of_metrics_names_files_that_exist():
    named = re.findall(r"^\| `([\w/]+\.py)` \|", read("docs/evaluation.md"), re.MULTILINE)
    assert len(named) > 10
    for name in named:
        places = [PACKAGE / name, PACKAGE / "metrics" / name, PACKAGE / "heads" / name]
        assert any(place.is_file() for place in places), name


def test_the_citation_has_the_version_of_the_package():
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["version"] == __version__
    assert {"title", "authors", "message", "cff-version"} <= set(citation)


@pytest.mark.parametrize("name", ["bug", "idea"])
def test_an_issue_template_has_what_github_needs(name):
    form = yaml.safe_load(read(f".github/ISSUE_TEMPLATE/{name}.yml"))
    assert form["name"]
    assert form["description"]
    assert all(part["attributes"]["label"] for part in form["body"])


def test_the_release_checks_the_wheel_with_commands_that_exist():
    [job] = yaml.safe_load(read(".github/workflows/release.yml"))["jobs"].values()
    script = "\n".join(step.get("run", "") for step in job["steps"])
    used = re.findall(r"bin/grounded-attention ([a-z][a-z-]+)", script)
    assert {"doctor", "train", "heads"} <= set(used) <= set(COMMANDS)
    assert "release_notes.py" in script


def release():
    spec = importlib.util.spec_from_file_location("release_notes", ROOT / ".github" / "release_notes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_notes_are_the_section_of_the_version():
    log = "# Changelog\n\n## Unreleased\n\n- new\n\n## 1.0.0\n\n- old\n- older\n"
    notes = release().release_notes
    assert notes("v1.0.0", log, "1.0.0") == "- old\n- older"
    assert notes("v2.0.0", log, "2.0.0") == "- new"
    with pytest.raises(ValueError, match="the tag is v3, but the package has version 2"):
        notes("v3", log, "2")
    with pytest.raises(ValueError, match="no entries"):
        notes("v2", "# Changelog\n", "2")
    assert release().package_version() == __version__
