"""What strangers meet before the code: workflows and hooks that call `make`, and metadata that agree with them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.oldest import oldest, other_than
from tests.release import objections

ROOT = Path(__file__).parent.parent
GITHUB = ROOT / ".github"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def commands(text: str) -> list[str]:
    """Of the steps of a workflow, or of the hooks of pre-commit."""
    return [re.sub(r"\s+#.*", "", line) for line in re.findall(r"^\s+(?:- )?(?:run|entry): (.*)$", text, re.MULTILINE)]


def other_than_make(text: str) -> list[str]:
    found = ((line, re.fullmatch(r'make ([a-z-]+)(?: [A-Z]+="?\$?\w+"?)*', line)) for line in commands(text))
    return [line for line, make in found if make is None or make[1] not in TARGETS]


@pytest.mark.parametrize("name", ["tests.yml", "soak.yml", "release.yml"])
def test_every_step_of_a_workflow_is_a_target_of_make(name: str) -> None:
    text = (GITHUB / "workflows" / name).read_text()
    assert commands(text)
    assert other_than_make(text) == []


def test_every_hook_before_a_commit_is_a_target_of_make() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert len(commands(text)) == 2
    assert other_than_make(text) == []


def test_every_workflow_may_only_read_unless_it_says_otherwise() -> None:
    texts = [file.read_text() for file in (GITHUB / "workflows").iterdir()]
    assert all("\npermissions:\n  contents: read\n" in text for text in texts)
    assert sum(text.count("write") for text in texts) == 1  # the token of trusted publishing


def test_no_step_after_the_checkout_has_the_token_of_the_repository() -> None:
    for file in (GITHUB / "workflows").iterdir():
        text = file.read_text()
        kept = text.count("actions/checkout@") - text.count("persist-credentials: false")
        assert kept == 0, f"{file.name} keeps it {kept} times"


def test_every_target_of_make_is_explained_and_is_no_file() -> None:
    text = (ROOT / "Makefile").read_text()
    [phony] = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert set(phony.split()) == TARGETS == set(re.findall(r"^([a-z-]+):.*##", text, re.MULTILINE))


def test_the_tests_run_on_every_python_that_the_metadata_names() -> None:
    classifiers = " ".join(PROJECT["project"]["classifiers"])
    named = re.findall(r"Python :: (3\.\d+)", classifiers)
    [matrix] = re.findall(r"python: \[(.*)\]", (GITHUB / "workflows" / "tests.yml").read_text())
    assert re.findall(r'"([\d.]+)"', matrix) == named
    assert PROJECT["project"]["requires-python"] == f">={named[0]}"


def test_the_owner_of_the_repository_is_named_in_one_file() -> None:
    owner = PROJECT["project"]["urls"]["Homepage"].removeprefix("https://")
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *GITHUB.rglob("*.*")]
    assert [page.name for page in pages if owner in page.read_text()] == []


def test_the_form_for_a_bug_asks_for_what_the_doctor_says() -> None:
    assert "lockfast doctor --json" in (GITHUB / "ISSUE_TEMPLATE" / "bug.yml").read_text()


def test_the_oldest_clients_are_the_lower_bounds_of_the_metadata() -> None:
    assert {requirement.split("==")[0] for requirement in oldest()} == {
        "redis",
        "hiredis",
        "psycopg[binary]",
        "prometheus-client",
        "opentelemetry-api",
    }
    assert other_than(["pytest==1.0"])[0].startswith("pytest ")


@pytest.mark.parametrize(
    ("tag", "changelog", "refused"),
    [
        ("v1.2.0", "# Changelog\n## 1.2.0, 2027-01-31\n", None),
        ("1.2.0", "## 1.2.0, 2027-01-31\n", "the tag is '1.2.0'"),
        ("v1.3.0", "## 1.2.0, 2027-01-31\n", "the tag is 'v1.3.0'"),
        ("v1.2.0", "## 1.2.0, unreleased\n", "does not say when"),
        ("v1.2.0", "## 1.2.01, 2027-01-31\n", "has no heading"),
    ],
)
def test_a_release_needs_its_tag_and_its_date(tag: str, changelog: str, refused: str | None) -> None:
    found = list(objections(tag, "1.2.0", changelog))
    assert len(found) == (0 if refused is None else 1)
    assert refused is None or refused in found[0]


def test_a_step_that_is_no_target_of_make_is_noticed() -> None:
    lines = ["make lint", "pip install tox", "make nothing", 'make dist TAG="$X"']
    text = "".join(f"      - run: {line}\n" for line in lines)
    assert other_than_make(text) == ["pip install tox", "make nothing"]
