"""What agents and hosting sites read is true: links, versions, commands, notes of a release."""

import importlib
import importlib.util
import re

import pytest
import yaml

from grounded_attention import __version__
from grounded_attention.commands.main import COMMANDS
from tests.helpers.commands import ROOT

PACKAGE = ROOT / "grounded_attention"


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_llms_txt_of_the_site_lists_every_page_once():
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.syspath_prepend(ROOT / "docs")
        text = importlib.import_module("llms_text").llms_text(yaml.safe_load(read("docs/navigation.yml")))
    listed = re.findall(r"^- \[.+\]\((.+)\.html\)$", text, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert {str(page.relative_to(ROOT).with_suffix("")) for page in (ROOT / "docs").rglob("*.md")} <= set(listed)
    assert re.match(r"# .+\n\n> ", text)


def test_contributing_names_files_that_exist_and_what_is_in_them():
    table = read("CONTRIBUTING.md").partition("## Where to look")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", table, re.MULTILINE)[1:]
    assert len(rows) > 20
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
    with pytest.raises(ValueError, match=r"nothing below '## 2\.0\.0'"):
        notes("v2.0.0", log, "2.0.0")
    with pytest.raises(ValueError, match="the tag is v3, but the package has version 2"):
        notes("v3", log, "2")
    assert notes(f"v{__version__}", read("CHANGELOG.md"), __version__)
    assert release().package_version() == __version__
