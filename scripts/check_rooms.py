#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the source against the table of rooms in src/README.md.

    check_rooms.py                 every #include under src/
    check_rooms.py --objects DIR   also every symbol used across rooms, from the objects of a build
    check_rooms.py --self-test     that it finds what it should

A file src/<room>/x belongs to its room; src/<room>.c is a room of one file. The public header is open to all.
Prints file:line for each violation and ends with 1 if there are any.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]')


class TableError(Exception):
    pass


def read_table(readme):
    """{room: set of rooms it may use}, in the order of the page."""
    rooms = {}
    with open(readme, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            cells = [c.strip() for c in line.strip().strip("|").split("|")]
            if not line.startswith("| `") or len(cells) != 3:
                continue
            room, uses = cells[0].strip("`"), set(re.findall(r"`(\w+)`", cells[2]))
            above = uses - rooms.keys()
            if room in rooms or above:
                what = "is listed twice" if room in rooms else f"uses {', '.join(sorted(above))}, not below it"
                raise TableError(f"{readme}:{number}: room {room} {what}")
            rooms[room] = uses
    if not rooms:
        raise TableError(f"{readme}: no table of rooms")
    return rooms


def sources(src):
    for folder, _, names in sorted(os.walk(src)):
        for name in sorted(names):
            if name.endswith((".c", ".h")):
                yield os.path.join(folder, name)


def room_of(path, src):
    parts = os.path.relpath(path, src).split(os.sep)
    return parts[0] if len(parts) > 1 else os.path.splitext(parts[0])[0]


def included_room(path, bracket, name, src):
    """The room that an include reaches, or None for the system's and the public header."""
    beside = os.path.normpath(os.path.join(os.path.dirname(path), name))
    from_src = os.path.normpath(os.path.join(src, name))
    if bracket == '"' and os.path.exists(beside) and not os.path.relpath(beside, src).startswith(".."):
        return room_of(beside, src)
    return room_of(from_src, src) if os.path.exists(from_src) else None


def check_includes(src, rooms):
    found, count = [], 0
    for path in sources(src):
        room = room_of(path, src)
        if room not in rooms:
            found.append(f"{path}:1: room {room} is not in the table of {src}/README.md")
            continue
        with open(path, encoding="utf-8") as f:
            for number, line in enumerate(f, 1):
                match = INCLUDE.match(line)
                target = match and included_room(path, match[1], match[2], src)
                count += bool(target)
                if target and target != room and target not in rooms[room]:
                    found.append(f"{path}:{number}: {room} may not use {target}: #include \"{match[2]}\"")
    return found, count


def symbols(objects):
    """(defined, undefined) names of tide_ functions and data in object files."""
    lines = subprocess.run(["nm", "-g", *objects], check=True, capture_output=True, text=True).stdout.splitlines()
    defined, undefined = set(), set()
    for line in lines:
        parts = line.split()
        if len(parts) >= 2 and parts[-1].startswith("tide_"):
            (undefined if parts[-2] in "Uw" else defined).add(parts[-1])
    return defined, undefined - defined


def check_symbols(build, rooms):
    """Declaring a function oneself is no way around the table."""
    objects = {}
    for folder, _, names in os.walk(os.path.join(build, "src")):
        match = re.search(r"CMakeFiles[/\\]tide_(\w+)\.dir", folder)
        room = match and {"face": "allocator"}.get(match[1], match[1])
        if room in rooms:
            objects.setdefault(room, []).extend(os.path.join(folder, n) for n in names if n.endswith(".o"))
    objects = {room: files for room, files in objects.items() if files}
    if not objects:
        raise TableError(f"{build}: no objects of rooms; is it a build folder?")
    tables = {room: symbols(files) for room, files in objects.items()}
    owner = {name: room for room, (defined, _) in tables.items() for name in defined}
    found, count = [], 0
    for room, (_, undefined) in tables.items():
        for name in sorted(undefined):
            count += 1
            if name in owner and owner[name] not in rooms[room]:
                found.append(f"{room}: calls {name}, of {owner[name]}, which it may not use")
    return found, count


def self_test():
    table = "| room | for | may use |\n|---|---|---|\n| `low` | x | |\n| `high` | y | `low` |\n"
    with tempfile.TemporaryDirectory() as src:
        def write(name, text):
            path = os.path.join(src, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)

        write("README.md", table)
        write("low/a.h", "\n")
        write("high/b.h", "#include \"low/a.h\"\n#include <stdio.h>\n")
        rooms = read_table(os.path.join(src, "README.md"))
        assert rooms == {"low": set(), "high": {"low"}}, rooms
        assert check_includes(src, rooms) == ([], 1)
        write("low/c.c", "/* up */\n  #  include \"high/b.h\"\n#include \"../high/b.h\"\n#include <high/b.h>\n")
        write("other/d.c", "\n")
        found, _ = check_includes(src, rooms)
        assert [f.split(": ", 1)[0].rsplit(os.sep, 1)[1] for f in found] == ["c.c:2", "c.c:3", "c.c:4", "d.c:1"], found
        write("README.md", table + "| `top` | z | `roof` |\n")
        try:
            read_table(os.path.join(src, "README.md"))
        except TableError as error:
            assert "top uses roof" in str(error)
        else:
            raise AssertionError("a room that uses one above it was accepted")
    print("check_rooms: self-test passed")


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--objects", metavar="DIR")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if args.self_test:
        self_test()
        return 0
    try:
        rooms = read_table("src/README.md")
        found, count = check_includes("src", rooms)
        said = f"{count} includes"
        if args.objects:
            more, symbol_count = check_symbols(args.objects, rooms)
            found += more
            said += f" and {symbol_count} symbols"
    except TableError as error:
        print(error)
        return 1
    for line in found:
        print(line)
    print(f"check_rooms: {said} between {len(rooms)} rooms, {len(found)} not allowed by src/README.md")
    return 1 if found else 0


sys.exit(main())
