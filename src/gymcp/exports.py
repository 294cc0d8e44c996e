"""Names that a package offers and that are imported when they are first used (PEP 562)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping


def make_getattr(package: str, names: Mapping[str, str]) -> Callable[[str], object]:
    """The `__getattr__` of a package that imports each of its modules when one of the module's names is first used.

    `names`: a module's path below the package -> the names that the package offers from it, divided by blanks. A
    command that needs one name so does not wait for the imports of all others, some of which take seconds.
    """
    modules = {name: f"{package}.{module}" for module, offered in names.items() for name in offered.split()}

    def get(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(importlib.import_module(modules[name]), name)
        setattr(importlib.import_module(package), name, value)
        return value

    return get
