"""The commands of README and docs: all are understood, and those that teach run as they stand, but shorter.

test_commands_of_documents_run.py runs those of the other documents.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from asyncrl.algorithm import load
from asyncrl.catalog import ALGORITHMS, module_of
from asyncrl.commands import doctor, evaluate, export, plot, race, report, speedup, sweep, watch
from asyncrl.config.commandline import parse

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
TAUGHT = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted((DOCS / "algorithms").glob("*.md"))]
"""Everything but results, whose commands are those of their commits."""
SHORT = {
    "--total-steps": 3000, "--max-steps": 2000, "--episodes": 2, "--evaluation-interval-steps": 1000,
    "--evaluation-episodes": 2,
}  # fmt: skip
"""What replaces the numbers of these flags when a command is tried."""


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.S | re.M)


def commands(text: str) -> list[list[str]]:
    """The words of each command line in a page's bash blocks, without comments and output redirection."""
    whole = "".join(blocks(text, "bash")).replace("\\\n", " ").replace('"$@"', "")
    lines = re.sub(r"\$\(\(.*?\)\)|\$\{?\w+\}?", "1", whole).splitlines()  # variables of the shell
    parts = [part for line in lines for part in re.split(r"&&|;|\|", line.partition(" > ")[0])]
    return [words for part in parts if (words := shlex.split(part, comments=True))]


def of_the_package(words: list[str]) -> list[str] | None:
    """`a3c --workers 4` for `python -m asyncrl.a3c --workers 4`; None for the command of another program."""
    for at, word in enumerate(words):
        if word == "asyncrl" and at == 0:
            return words[1:]
        if word == "-m" and re.match(r"asyncrl(\.|$)", words[at + 1]):
            return [words[at + 1][len("asyncrl.") :], *words[at + 2 :]] if "." in words[at + 1] else words[at + 2 :]
    return None


def understand(words: list[str]) -> None:
    """Raise UsageError, SystemExit or KeyError if the package would not take these words."""
    name, words = words[0], [word for word in words[1:] if word != "--help"]
    if name == "train":
        name, words = words[0], words[1:]
    if name in ALGORITHMS:
        parse(load(module_of(name)).Config, words, name)
    elif name in ("speedup", "race"):
        parse(
            {"speedup": speedup.Config, "race": race.Config}[name],
            words[: words.index("--")] if "--" in words else words,
            name,
        )
    elif name == "sweep":
        sweep.understand(words, name)
    elif not name.startswith("my_package."):
        modules = (doctor, evaluate, export, plot, report, watch)
        (module,) = (module for module in modules if module.__name__ == f"asyncrl.commands.{name}")
        parse(module.Config, words, name)


@pytest.mark.parametrize("page", TAUGHT, ids=lambda page: page.name)
def test_the_commands_of_a_page_are_understood(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every flag is there and takes such a value."""
    monkeypatch.syspath_prepend(ROOT)
    for words in commands(page.read_text()):
        own = of_the_package(words)
        if own and not own[0].startswith("my_package."):
            understand(own)


def test_the_excerpt_in_the_readme_is_the_pages_code() -> None:
    """Line by line and in this order, without annotations; lines of the source may be missing in between."""
    name, excerpt = re.search(
        r"<!-- excerpt: (\S+) -->\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S
    ).groups()
    source = iter(
        re.sub(
            r"(\w+): [\w.]+(?=[,)])|\) -> .*:$", _without_annotation, (ROOT / name).read_text(), flags=re.M
        ).splitlines()
    )
    lines = [line for line in excerpt.splitlines() if line]

    assert len(lines) <= 15
    for line in lines:
        assert any(there == f"    {line}" for there in source), line


def _without_annotation(match: re.Match[str]) -> str:
    return match[1] or "):"


def shortened(words: list[str]) -> list[str]:
    """The same command with small numbers, but larger ones for a run that is resumed."""
    if words[2:] and words[2].startswith("asyncrl.") and "--total-steps" not in words:
        words = [*words, "--total-steps", "400", "--max-episode-steps", "100"]
    for flag, number in SHORT.items():
        if flag in words:
            at = words.index(flag) + 1
            number *= 2 if "--resume" in words else 1
            words = [*words[:at], str(min(number, int(float(words[at])))), *words[at + 1 :]]
    return words


def run(words: list[str], folder: Path) -> None:
    """Run a command of a page there; it must succeed."""
    words = [sys.executable if words[0] == "python" else words[0], *words[1:]]
    path = {"PYTHONPATH": f"{folder}:{ROOT}"}
    done = subprocess.run(words, cwd=folder, env=os.environ | path, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, f"{shlex.join(words)}: {done.stdout[-500:]}{done.stderr[-1500:]}"


def files_in(text: str) -> dict[str, str]:
    """The Python files a page tells its reader to save: blocks whose first line is `# name.py`."""
    return {name: block for block in blocks(text, "python") for name in re.findall(r"\A# (\w+\.py)\n", block)}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md", "docs/environments.md"])
def test_the_commands_of_a_page_run(page: str, tmp_path: Path) -> None:
    """One after the other, in one folder, with the files the page gives."""
    text = (ROOT / page).read_text()
    for name, block in files_in(text).items():
        (tmp_path / name).write_text(block)
    tried = [words for words in commands(text) if words[0] == "python" and words[1:3] != ["-m", "pytest"]]
    assert len(tried) >= 2

    for words in tried:
        run(shortened(words), tmp_path)


def tutorial(folder: Path) -> None:
    """Write the tutorial's package there: its first two blocks are files."""
    sharper, whole, _ = blocks((DOCS / "tutorial.md").read_text(), "python")
    (folder / "my_package").mkdir()
    (folder / "my_package" / "__init__.py").touch()
    (folder / "my_package" / "sharper.py").write_text(sharper)
    (folder / "my_package" / "my_algorithm.py").write_text(whole)


def test_the_tutorials_page_trains_in_turns(tmp_path: Path) -> None:
    """On the serial backend, to its end, with an evaluation."""
    tutorial(tmp_path)
    words = [
        "-m",
        "asyncrl",
        "train",
        "my_package.my_algorithm",
        "--env-id",
        "Catch",
        "--backend",
        "serial",
        "--workers",
        "2",
    ]

    run(["python", *words, "--total-steps", "2000", "--quiet"], tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_commands_of_the_tutorial_run(tmp_path: Path) -> None:
    """Serial and local, and what is done with the runs; then from Python."""
    tutorial(tmp_path)
    text = (DOCS / "tutorial.md").read_text()
    for words in commands(text):
        if words[0] == "python":
            run(shortened(words), tmp_path)

    (tmp_path / "script.py").write_text(blocks(text, "python")[-1].replace("20_000", "2_000"))
    run(["python", "script.py"], tmp_path)


class Links(HTMLParser):
    """The targets and anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what it links to, shows, and how it can be linked to."""
        self.targets |= {value for name, value in attrs if name in ("href", "src") and value}
        self.anchors |= {value for name, value in attrs if name == "id" and value}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_site_builds_without_warnings_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    """Pages, anchors, pictures and sources."""
    pytest.importorskip("sphinx")
    site = tmp_path / "site"
    words = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-d",
        str(tmp_path / "trees"),
        str(DOCS),
        str(site),
    ]
    done = subprocess.run(
        words, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=1000
    )
    assert (done.returncode, done.stderr) == (0, "")

    pages = {page: Links() for page in site.rglob("*.html")}
    for page, links in pages.items():
        links.feed(page.read_text())
    for page, links in pages.items():
        for target in links.targets:
            if not re.match(r"\w+:|#$|//", target):
                path, _, anchor = target.partition("#")
                goal = (page.parent / unquote(path.partition("?")[0])).resolve() if path else page
                assert goal.exists(), f"{page.relative_to(site)} links to {target}"
                assert not anchor or goal not in pages or unquote(anchor) in pages[goal].anchors, (
                    f"{page.relative_to(site)} links to {target}"
                )
