"""Hooks of MkDocs for `make docs`: what the site has beyond the pages of docs/, and what it must not have.

The navigation is that of docs/index.md: its headings are the sections, the rows of its tables the pages.
"""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY_PAGES = {"README.md": "readme.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}  # file → page

_SECTION = re.compile(r"^## (?P<title>.+)$|^\| \[(?P<page>[^\]]+)\]\((?P<path>[^)#]+)[^)]*\)", re.MULTILINE)
_LINK = re.compile(r"\]\((?P<target>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)")
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//|<link\b(?![^>]*canonical)[^>]*\bhref=["']?(?:https?:)?//"""
)


def navigation(index: str) -> list[dict[str, Any]]:
    """Return the sections of docs/index.md with their pages."""
    sections: list[dict[str, Any]] = [{"Start": [{"Overview": "index.md"}, {"README": "readme.md"}]}]
    for found in _SECTION.finditer(index):
        if found["title"]:
            sections.append({found["title"]: []})
        else:
            [pages] = sections[-1].values()
            pages.append({found["page"]: found["path"]})
    sections.append({"Project": [{"Changes": "changelog.md"}, {"Contributing": "contributing.md"}]})
    return [section for section in sections if all(section.values())]


def on_config(config: Any) -> Any:
    config.nav = navigation((ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and the files that the documentation links to, but that lie outside of docs/."""
    from mkdocs.structure.files import File

    for name, address in REPOSITORY_PAGES.items():
        files.append(File.generated(config, address, content=(ROOT / name).read_text(encoding="utf-8")))
    for page in [*(ROOT / "docs").glob("**/*.md"), *(ROOT / name for name in REPOSITORY_PAGES)]:
        for found in _LINK.finditer(page.read_text(encoding="utf-8")):
            target = (page.parent / found["target"]).resolve()
            address = _address(target)
            if target.is_file() and not address.endswith(".md") and address not in files.src_uris:
                files.append(File.generated(config, address, abs_src_path=str(target)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Lead links to where their targets are on the site."""
    address = page.file.src_uri
    outside = {page: name for name, page in REPOSITORY_PAGES.items()}
    source = ROOT / outside[address] if address in outside else ROOT / "docs" / address
    depth = address.count("/")

    def link(found: re.Match[str]) -> str:
        target = (source.parent / found["target"]).resolve()
        if not target.is_file():
            return found[0]
        return f"]({'../' * depth}{_address(target)}{found['anchor'] or ''})"

    return _LINK.sub(link, markdown)


def _address(target: Path) -> str:
    """Return where a file of the repository is on the site."""
    if target.is_relative_to(ROOT / "docs"):
        return str(target.relative_to(ROOT / "docs"))
    return REPOSITORY_PAGES.get(str(target.relative_to(ROOT)), f"files/{target.relative_to(ROOT)}")


def on_post_build(config: Any) -> None:
    """Refuse a site that would load anything from elsewhere while it is read."""
    wrong = [
        f"{path}: {found[0]}"
        for path in Path(config.site_dir).glob("**/*.html")
        for found in LOADED.finditer(path.read_text(encoding="utf-8"))
    ]
    if wrong:
        raise SystemExit("the site would load from elsewhere:\n" + "\n".join(wrong[:20]))
