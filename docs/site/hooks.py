"""Hooks of mkdocs: pages that are made from the code at build time, and links that lead out of docs/."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from cli_reference import describe_commands
from links import COPIED, PICTURES, ROOT, replace_links
from mkdocs.structure.files import File, Files
from narrow_pages import mark_page, show_reasons
from recipe_keys import describe_recipe

PACKAGES = (
    "gymcp",
    "gymcp.envs",
    "gymcp.mcp_servers",
    "gymcp.agents",
    "gymcp.evaluators",
    "gymcp.evaluators.graders",
    "gymcp.trainers",
    "gymcp.store",
)

_NAVIGATION_LABEL = re.compile(
    r'(<label class="(?:md-nav__title" for="__nav_\w+"|md-nav__link md-nav__link--active" for="__toc"))>'
)
"""Switches that are shown on a narrow screen only: back from a section, and the contents of the page."""


def on_files(files: Files, *, config: Any) -> Files:
    """The files with the generated pages."""
    pages = {"reference/cli.md": describe_commands(), "reference/recipe.md": describe_recipe()}
    pages |= {f"reference/{name}.md": describe_package(name) for name in PACKAGES}
    pages |= {page: (ROOT / source).read_text(encoding="utf-8") for source, page in COPIED.items()}
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))
    results = ROOT / PICTURES
    for path in sorted([*results.rglob("*.png"), *results.rglob("REPORT.md")]):
        files.append(File.generated(config, f"results/{path.relative_to(results)}", abs_src_path=str(path)))
    return files


def describe_package(name: str) -> str:
    """Page of a package: mkdocstrings fills in what `__all__` names."""
    source = ROOT.joinpath("src", *name.split("."), "__init__.py").read_text(encoding="utf-8")
    assignments = [node for node in ast.parse(source).body if isinstance(node, ast.Assign)]
    (public,) = [ast.literal_eval(node.value) for node in assignments if ast.unparse(node.targets[0]) == "__all__"]
    return f"# {name}\n\n::: {name}\n    options:\n      members: {json.dumps(public)}\n"


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """The text with links between files of the repository as links of the site."""
    sources = {page: source for source, page in COPIED.items()}
    here = ROOT / sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return show_reasons(replace_links(markdown, here, depth=page.file.src_uri.count("/")))


def on_page_content(html: str, *, page: Any, config: Any, files: Files) -> str:
    """The content with marks for narrow screens."""
    return mark_page(html)


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """The page with a name for the theme's search dialog, which screen readers announce, and with stops of the Tab key
    on its switches: the theme lets Enter press a label that has the focus, but gives most labels none."""
    output = output.replace('role="dialog">', 'role="dialog" aria-label="Search">')
    for target, name in (("__drawer", "Navigation"), ("__search", "Search")):
        output = output.replace(
            f'<label class="md-header__button md-icon" for="{target}">',
            f'<label class="md-header__button md-icon" for="{target}" tabindex="0" title="{name}">',
        )
    return _NAVIGATION_LABEL.sub(r'\1 tabindex="0">', output)
