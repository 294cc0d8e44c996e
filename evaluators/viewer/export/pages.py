"""Pages and the script of an export, made from the files of ``static/``.

A browser that opens a page from the disk loads no modules, so those of the viewer become one script.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gymcp.evaluators.viewer.pages import STATIC

REPLACED = {"ask.js": "exported.js"}
"""Modules that an export has in place of others."""
POLICY = (
    "default-src 'none'; script-src 'self' file:; style-src 'self' file:; img-src 'self' file:; base-uri 'none';"
    " form-action 'none'; require-trusted-types-for 'script'; trusted-types gymcp-data"
)
_IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "\./(\w+\.js)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function\*? (\w+)|const (\w+))", re.MULTILINE)
_MODULE_SYNTAX = re.compile(r"^\s*(?:import|export)\b", re.MULTILINE)
_MODULE_LINK = re.compile(r'^(?:<link rel="modulepreload".*|<script type="module".*)\n', re.MULTILINE)


def bundle_script(entry: str) -> str:
    """One classic script that does what the module of that name does. Raises ValueError for syntax that it cannot move.

    Each module becomes a function that runs once, after those that it imports.
    """
    done: dict[str, str] = {}
    _collect(entry, done, ())
    return '"use strict";\nconst modules = {};\n' + "".join(done.values())


def make_page(name: str, script: str, attributes: Mapping[str, str]) -> str:
    """A page of ``static/`` for an export. `attributes`: those of its root element; ``data-root`` leads to the top."""
    page = (STATIC / name).read_text(encoding="utf-8")
    root = attributes["data-root"]
    page = _MODULE_LINK.sub("", page).replace('href="static/', f'href="{root}static/')
    attributes_text = "".join(f' {key}="{value}"' for key, value in attributes.items())
    page = page.replace('<html lang="en">', f'<html lang="en"{attributes_text}>')
    head = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
    end = f'<script defer src="{root}static/{script}"></script>\n</head>'
    return page.replace("<title>", f"{head}<title>").replace("</head>", end)


def _collect(name: str, done: dict[str, str], above: tuple[str, ...]) -> None:
    """Add the module and those that it imports to `done`, each after what it needs."""
    name = REPLACED.get(name, name)
    if name in above:
        raise ValueError(f"{name}: modules import each other: {' → '.join((*above, name))}")
    if name in done:
        return
    source = (STATIC / name).read_text(encoding="utf-8")
    for _, needed in _IMPORT.findall(source):
        _collect(needed, done, (*above, name))
    offered = [function or constant for function, constant in _EXPORT.findall(source)]
    body = _EXPORT.sub("", _IMPORT.sub(_require, source))
    if rest := _MODULE_SYNTAX.search(body):
        raise ValueError(f"{name}: cannot be bundled: {body[rest.start() :].strip().splitlines()[0]}")
    done[name] = f'modules["{name}"] = (() => {{\n{body}\nreturn {{ {", ".join(offered)} }};\n}})();\n'


def _require(found: re.Match[str]) -> str:
    return f'const {{ {found[1]} }} = modules["{REPLACED.get(found[2], found[2])}"];'
