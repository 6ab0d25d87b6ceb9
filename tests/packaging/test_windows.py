"""What only Linux and macOS have is asked for before it is used: RTX users sit at Windows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "vitdeploy"
POSIX_ONLY = {
    "fcntl", "grp", "pwd", "resource", "termios", "tty", "pty",
    "fork", "forkpty", "getuid", "geteuid", "getpgid", "setsid", "killpg", "mkfifo", "symlink",
    "symlink_to", "SIGKILL", "SIGHUP", "SIGALRM", "alarm", "setitimer", "preexec_fn", "sysconf",
    "sched_getaffinity", "chown", "statvfs", "nice",
}  # fmt: skip


def names_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (node.module or "", *(name.name for name in node.names))
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.keyword):
            yield node.arg or ""


def guards_in(tree: ast.AST) -> Iterator[str]:
    """Names asked for with hasattr, or used where their absence is caught."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "hasattr":
            yield str(getattr(node.args[1], "value", ""))
        elif isinstance(node, ast.Try):
            caught = {
                getattr(part, "id", "")
                for handler in node.handlers
                for part in ast.walk(handler.type or ast.Constant(None))
            }
            if caught & {"ImportError", "AttributeError"}:
                for statement in node.body:
                    yield from names_in(statement)


def unguarded(source: str) -> set[str]:
    tree = ast.parse(source)
    return set(names_in(tree)) & POSIX_ONLY - set(guards_in(tree))


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_windows_has_every_call() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in sources()}
    found = {str(path): names for path in texts if (names := unguarded(texts[path]))}
    assert len(texts) > 100
    assert found == {}


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos.fork()",
        "import signal\nsignal.SIGKILL",
        "import fcntl",
        "from os import symlink",
        "subprocess.run([], preexec_fn=f)",
        "Path('a').symlink_to('b')",
        "try:\n    os.getuid()\nexcept ValueError:\n    pass",
        "if hasattr(os, 'fork'):\n    os.setsid()",
    ],
)
def test_the_walk_sees_what_windows_has_not(code: str) -> None:
    assert unguarded(code)


@pytest.mark.parametrize(
    "code",
    [
        "if hasattr(os, 'fork'):\n    os.fork()",
        "try:\n    import resource\nexcept ImportError:\n    pass",
        "try:\n    os.sysconf('x')\nexcept (AttributeError, ValueError):\n    pass",
    ],
)
def test_what_is_asked_for_may_be_used(code: str) -> None:
    assert not unguarded(code)


def test_texts_are_read_in_one_code_everywhere() -> None:
    """Without an encoding Windows reads and writes files in its own code page."""
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                given = {keyword.arg for keyword in node.keywords}
                if node.func.attr in ("read_text", "write_text"):
                    # What the kernel says of itself is ASCII, and read as far as it can be.
                    assert given & {"encoding", "errors"}, f"{path}:{node.lineno}"


def renames_unprepared(source: str) -> list[int]:
    """Lines that rename where a refusal by the system is not caught."""
    tree = ast.parse(source)
    prepared = [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.Try)
        and any(
            handler.type and "OSError" in ast.unparse(handler.type) for handler in node.handlers
        )
    ]
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr == "rename"
        and not any(node.lineno in lines for lines in prepared)
    ]


def test_files_are_replaced_not_renamed() -> None:
    """`rename` onto what is there fails on Windows; `replace` does not, of a file."""
    assert renames_unprepared("Path('a').rename('b')") == [1]
    for path in sources():
        assert renames_unprepared(path.read_text(encoding="utf-8")) == [], path


def test_child_processes_begin_in_modules_that_can_be_imported_twice() -> None:
    """Windows spawns, never forks: what a child runs stands behind the name of the main module."""
    for name in ("backends/cold_start.py", "backends/tensorrt/worker.py", "__main__.py"):
        tree = ast.parse((PACKAGE / name).read_text(encoding="utf-8"))
        tests = [ast.unparse(node.test) for node in tree.body if isinstance(node, ast.If)]
        calls = [
            node
            for node in tree.body
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        ]
        assert "__name__ == '__main__'" in tests
        assert calls == []
