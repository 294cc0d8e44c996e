"""Worlds that no digester should be fooled by, made in the workspace. Runs inside; standard library only."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import struct
import subprocess
import sys
from typing import Any

MB = 1_000_000
racers: list[subprocess.Popen[bytes]] = []


def clear(given: dict[str, Any]) -> str:
    """Makes room for the next attempt."""
    while racers:
        racer = racers.pop()
        racer.kill()
        racer.wait()
    if os.path.isdir("shut"):
        os.chmod("shut", 0o700)
    subprocess.run(["rm", "-rf", "--", *os.listdir(".")], check=True)
    return "made"


def fifo(given: dict[str, Any]) -> str:
    os.mkfifo("pipe")
    return "made"


def unix_socket(given: dict[str, Any]) -> str:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("socket")
    return "made"


def link_to_a_secret(given: dict[str, Any]) -> str:
    os.symlink(given["secret"], "notes.txt")
    return "made"


def link_to_a_folder(given: dict[str, Any]) -> str:
    os.symlink(os.path.dirname(given["secret"]), "notes")
    return "made"


def link_to_an_endless_file(given: dict[str, Any]) -> str:
    os.symlink("/dev/zero", "zeros")
    return "made"


def link_to_itself(given: dict[str, Any]) -> str:
    os.makedirs("a/b")
    os.symlink("../../a", "a/b/c")
    os.symlink("me", "me")
    return "made"


def folder_that_becomes_a_link(given: dict[str, Any]) -> str:
    """While it is read: a folder, then a link to the secret's folder, thousands of times a second."""
    outside = os.path.dirname(given["secret"])
    code = (
        "import os, sys, signal\nsignal.alarm(20)\nos.mkdir('real'); open('real/secret', 'w').close()\n"
        f"os.symlink({outside!r}, 'false')\n"
        "while True:\n"
        "    os.rename('real', 'shown'); os.rename('shown', 'real'); os.rename('false', 'shown')\n"
        "    os.rename('shown', 'false')\n"
    )
    racers.append(subprocess.Popen([sys.executable, "-I", "-S", "-c", code], stdin=subprocess.DEVNULL))
    return "racing"


def sparse_files(given: dict[str, Any]) -> str:
    for number in range(8):
        with open(f"sparse{number}", "wb") as file:
            file.truncate(200 * MB)
    return "made"


def huge_folder(given: dict[str, Any]) -> str:
    for number in range(12_000):
        os.close(os.open(f"file{number}", os.O_CREAT | os.O_WRONLY))
    return "made"


def deep_nesting(given: dict[str, Any]) -> str:
    home = os.getcwd()
    for _ in range(2_000):
        os.mkdir("d")
        os.chdir("d")
    os.chdir(home)
    return "made"


def unreadable_files(given: dict[str, Any]) -> str:
    with open("closed", "w") as file:
        file.write("x")
    os.mkdir("shut")
    os.chmod("closed", 0)
    os.chmod("shut", 0)
    return "made"


def names_of_any_bytes(given: dict[str, Any]) -> str:
    for name in (b"a\nb", b"\xff\xfe", b"\x1b[2J", "ü".encode("latin-1"), b'"quoted\\"', b" "):
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
    return "made"


def set_id_file(given: dict[str, Any]) -> str:
    with open("raised", "w") as file:
        file.write("#!/bin/sh\n")
    with contextlib.suppress(OSError):
        os.chmod("raised", 0o4755)
    return "made"


def corrupt_database(given: dict[str, Any]) -> str:
    _database("CREATE TABLE t(x)", *["INSERT INTO t VALUES (hex(randomblob(500)))"] * 50)
    with open("db", "r+b") as file:
        file.seek(120)
        file.write(os.urandom(20_000))
    return "made"


def _database(*statements: str) -> None:
    connection = sqlite3.connect("db", isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def _rewritten(*statements: str) -> None:
    _database("CREATE TABLE t(x)", "PRAGMA writable_schema=ON", *statements)


def endless_view_as_a_table(given: dict[str, Any]) -> str:
    endless = "CREATE VIEW t AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n) SELECT x FROM n"
    _rewritten(f"UPDATE sqlite_master SET sql = '{endless}' WHERE name = 't'")
    return "made"


def endless_view(given: dict[str, Any]) -> str:
    _database("CREATE VIEW v AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n) SELECT x FROM n")
    return "made"


def generated_column_of_many_bytes(given: dict[str, Any]) -> str:
    """A fifth of a gigabyte for each row, and no byte in the file."""
    _database("CREATE TABLE t(x, y AS (hex(zeroblob(100000000))))", "INSERT INTO t(x) VALUES (1), (2), (3), (4), (5)")
    return "made"


def row_of_many_bytes(given: dict[str, Any]) -> str:
    _database("CREATE TABLE t(x)", "INSERT INTO t VALUES (zeroblob(150000000))")
    return "made"


def virtual_table_in_disguise(given: dict[str, Any]) -> str:
    _rewritten(
        "UPDATE sqlite_master SET sql = 'CREATE/**/VIRTUAL TABLE t USING fts5(x)', rootpage = 0 WHERE name = 't'"
    )
    return "made"


def schema_that_makes_no_sense(given: dict[str, Any]) -> str:
    _rewritten(
        "INSERT INTO sqlite_master VALUES ('table', 'a\"b', 'a\"b', 2, 'CREATE TABLE \"a\"\"b\"(x)')",
        "INSERT INTO sqlite_master VALUES ('table', 'sqlite_sequence', 'sqlite_sequence', 2, 'no sql at all')",
    )
    return "made"


def journal_that_names_another_file(given: dict[str, Any]) -> str:
    """Hot: sqlite rolls it back, and looks for the file that it names."""
    _database("CREATE TABLE t(x)", "INSERT INTO t VALUES (1)")
    name = given["secret"].encode()
    header = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + struct.pack(">IIIII", 1, 0, 2, 512, 4096)
    tail = struct.pack(">I", 0x40000000 // 4096 + 1) + name + struct.pack(">II", len(name), sum(name))
    with open("db-journal", "wb") as file:
        file.write(header.ljust(512, b"\0") + tail + b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7")
    return "made"


def log_of_another_database(given: dict[str, Any]) -> str:
    """A write-ahead log whose pages do not belong to the file."""
    _database("CREATE TABLE t(x)", "PRAGMA journal_mode=WAL", "INSERT INTO t VALUES (1)")
    with open("db-wal", "wb") as file:
        file.write(struct.pack(">IIII", 0x377F0682, 3007000, 4096, 0) + os.urandom(100_000))
    return "made"


def database_behind_a_link(given: dict[str, Any]) -> str:
    os.symlink(given["secret_database"], "db")
    return "made"
