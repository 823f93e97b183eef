"""The documentation as a site: complete, and readable without a network."""

import os
import subprocess
import sys
from pathlib import Path

from tools import site

DOCS = site.ROOT / "docs"


def test_the_navigation_has_every_page_of_the_index_under_its_heading() -> None:
    using, running = "## Using it\n\n| [Guide](guide.md) | How? |\n", "## Running it\n\n| [Gates](gates.md#pause) | Stop |\n"
    index = f"# Documentation\n\n{using}\n## Empty\n\n{running}"
    inner = site.navigation(index)[1:-1]
    assert inner == [{"Using it": [{"Guide": "guide.md"}]}, {"Running it": [{"Gates": "gates.md"}]}]


def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(build, cwd=site.ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    pages = {str(page.relative_to(tmp_path / "site")) for page in (tmp_path / "site").glob("**/*.html")}
    wanted = {str(page.relative_to(DOCS).with_suffix(".html")) for page in DOCS.glob("**/*.md")}
    assert wanted | {"readme.html", "changelog.html", "contributing.html"} <= pages
    assert "gates" in (tmp_path / "site" / "search" / "search_index.js").read_text(encoding="utf-8")


def test_a_page_that_loads_from_elsewhere_is_noticed() -> None:
    for loads in (
        '<script src="https://x.example/a.js">',
        "<img alt=x src=//x.example/a.png>",
        '<link rel="stylesheet" href="https://x.example/a.css">',
    ):
        assert site.LOADED.search(loads)
    for does_not in ('<a href="https://x.example/">', '<script src="assets/a.js">', '<link rel="canonical" href="https://x.example/">'):
        assert not site.LOADED.search(does_not)
