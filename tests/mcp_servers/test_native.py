"""Source of a class that enters the sandbox, and classes that are refused before they could fail there."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from gymcp.errors import ConfigError
from gymcp.mcp_servers.native.runtime import class_server
from gymcp.mcp_servers.native.server import _class_source, native_server
from gymcp.mcp_servers.sandbox import Mount

OUTSIDE = "class 'Tool' uses K of its file, but only the class itself and the plain imports"
PACKAGE = "class 'Tool' imports numpy, and a native server has only Python's standard library"
USES = "class Tool:\n    def f(self) -> int:\n        return K\n"


def class_in(tmp_path: Path, name: str, text: str) -> type:
    file = tmp_path / f"{name}.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    found: type = module.Tool
    return found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("K = 1\n" + USES, OUTSIDE),
        ("if True:\n    K = 1\n" + USES, OUTSIDE),
        ("for K in (1, 2):\n    pass\n" + USES, OUTSIDE),
        ("with open('/dev/null') as K:\n    pass\n" + USES, OUTSIDE),
        ("try:\n    import math as K\nexcept ImportError:\n    K = None\n" + USES, OUTSIDE),
        ("async def K():\n    pass\n" + USES, OUTSIDE),
        ("from math import *\nclass Tool:\n    def f(self) -> float:\n        return pi\n", "class 'Tool' uses pi of"),
        ("import numpy as np\nclass Tool:\n    def f(self) -> int:\n        return np.int64(1)\n", PACKAGE),
        ("from numpy import int64\nclass Tool:\n    def f(self) -> int:\n        return int64(1)\n", PACKAGE),
        ("class Tool:\n    async def f(self) -> int:\n        return 1\n", "class 'Tool': async f: tools run one at a"),
    ],
)
def test_a_class_that_uses_missing_names_is_refused(text: str, said: str, tmp_path: Path) -> None:
    cls = class_in(tmp_path, "refused", text)
    with pytest.raises(ConfigError) as caught:
        native_server("s", cls)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "import math as K\n" + USES,
        "K = 1\nclass Tool:\n    def f(self) -> int:\n        K = 2\n        return K\n",
        "K = [x for x in (1,)]\nclass Tool:\n    def f(self) -> int:\n        return sum(x for x in (1,))\n",
        "from math import *\nimport math\nclass Tool:\n    def f(self) -> float:\n        return math.pi\n",
    ],
)
def test_a_class_that_uses_available_names_is_accepted(text: str, tmp_path: Path) -> None:
    assert native_server("s", class_in(tmp_path, "taken", text)).state == "declared"


def test_a_class_with_a_mount_may_import_a_package(tmp_path: Path) -> None:
    cls = class_in(
        tmp_path, "mounted", "import numpy as np\nclass Tool:\n    def f(self) -> int:\n        return np.e\n"
    )
    mount = Mount(source=tmp_path, target=PurePosixPath("/srv/site"))
    assert native_server("s", cls, mounts=[mount], python_path=[PurePosixPath("/srv/site")]).state == "declared"


@pytest.mark.parametrize("imported", ["gymcp.mcp_servers", "gymcp.mcp_servers.native.runtime"])
def test_an_error_of_a_tool_is_imported_from_the_runtime_wherever_the_file_has_it_from(
    tmp_path: Path, imported: str
) -> None:
    body = "class Tool:\n    def f(self) -> int:\n        raise ToolError('no')\n"
    cls = class_in(tmp_path, "raising", f"from {imported} import ToolError\n{body}")
    assert "\nfrom gymcp.mcp_servers.native.runtime import ToolError\n" in _class_source(cls, importable=None)


def test_nothing_else_of_the_package_enters_the_sandbox(tmp_path: Path) -> None:
    text = (
        "from gymcp.mcp_servers import Limits, ToolError\nclass Tool:\n    def f(self) -> int:\n        return Limits\n"
    )
    with pytest.raises(ConfigError, match=r"'Limits' of gymcp\.mcp_servers does not enter the sandbox"):
        native_server("s", class_in(tmp_path, "limited", text))


INNER = "class Tool:\n    def f(self) -> int:\n        {}\n        return 1\n"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("from gymcp.mcp_servers import ToolError", "gymcp.mcp_servers.ToolError"),
        ("from gymcp.types import Task", "gymcp.types.Task"),
        ("import gymcp.types", "gymcp.types"),
    ],
)
def test_an_import_inside_a_method_that_would_fail_in_the_sandbox_is_refused(
    tmp_path: Path, line: str, name: str
) -> None:
    cls = class_in(tmp_path, "inner", INNER.format(line))
    mount = Mount(source=tmp_path, target=PurePosixPath("/srv/site"))
    says = rf"class 'Tool' imports {re.escape(name)} inside the class, .*: import ToolError at the top of the file"
    for mounts in ((), (mount,)):
        with pytest.raises(ConfigError, match=says):
            native_server("s", cls, mounts=mounts)


@pytest.mark.parametrize(
    "line",
    [
        "from gymcp.mcp_servers.native.runtime import ToolError",
        "from gymcp.mcp_servers.native import runtime",
        "import gymcp.mcp_servers.native.runtime",
    ],
)
def test_the_runtime_is_imported_inside_a_method(tmp_path: Path, line: str) -> None:
    assert line in _class_source(class_in(tmp_path, "inner", INNER.format(line)), importable=frozenset())


def test_a_static_method_is_a_tool() -> None:
    class Tool:
        @staticmethod
        def double(x: int) -> str:
            """Twice."""
            return str(2 * x)

        def name(self) -> str:
            return "n"

    server = class_server(Tool)
    answer = server._call({"name": "double", "arguments": {"x": 4}})
    assert (answer["content"], answer["isError"]) == ([{"type": "text", "text": "8"}], False)
    assert list(server._tools) == ["double", "name"]
