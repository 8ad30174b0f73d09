#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is installed works from where it lies, and nothing but the public calls leaves the library.

    install_test.py SOURCE BUILD COMPILER [FLAG...]
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE, BUILD, COMPILER = sys.argv[1:4]
HERE = os.path.dirname(os.path.abspath(__file__))
FLAGS = sys.argv[4:]


def output(*command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **more)
    assert done.returncode == 0, f"$ {' '.join(command)}\ncode {done.returncode}\n{done.stdout}"
    return done.stdout


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as f:
        return f.read()


def only_public_symbols_leave_the_library(_):
    declared = set(re.findall(r"TIDE_API[^;(]*?\b(tide_\w+)\(", read(SOURCE, "include/pagetide/pagetide.h")))
    mapped = set(re.findall(r"^\s+(tide_\w+);", read(SOURCE, "src/pagetide.map"), flags=re.M))
    assert declared == mapped, f"pagetide.h and pagetide.map differ: {sorted(declared ^ mapped)}"
    lines = output("nm", "-D", "--defined-only", "--with-symbol-versions", os.path.join(BUILD, "libpagetide.so"))
    exported = {line.split()[-1] for line in lines.splitlines()}
    nodes = {name for name in exported if name.split("@")[0].startswith("PAGETIDE_")}
    exported -= nodes
    unversioned = {name for name in exported if "@@PAGETIDE_" not in name}
    assert not unversioned, f"exported without a version: {sorted(unversioned)}"
    names = {name.split("@")[0] for name in exported}
    assert names == declared, f"the library and pagetide.h differ: {sorted(names ^ declared)}"


def the_program_needs_no_other_library(_):
    needed = re.findall(r"NEEDED.*\[(.*?)\]", output("readelf", "-d", os.path.join(BUILD, "pagetide")))
    allowed = r"^(libc|libm|libpthread|libz|libzstd|libgcc_s|lib[atu]b?san|ld-linux.*)\.so"
    assert all(re.match(allowed, name) for name in needed), needed


def files_are_where_they_belong(prefix):
    found = {os.path.relpath(os.path.join(folder, name), prefix)
             for folder, _, names in os.walk(prefix) for name in names}
    for pattern in (r"bin/pagetide", r"include/pagetide/pagetide\.h", r"lib.*/libpagetide\.so",
                    r"lib.*/libpagetide\.so\.\d+\.\d+", r"lib.*/pkgconfig/pagetide\.pc",
                    r"lib.*/cmake/pagetide/pagetideConfig\.cmake", r"share/man/man1/pagetide-replay\.1"):
        assert any(re.fullmatch(pattern, name) for name in found), f"no {pattern} in {sorted(found)}"
    for name in found:
        if name.endswith((".pc", ".cmake")):
            text = read(prefix, name)
            assert SOURCE not in text and BUILD not in text, f"{name} names where it was built"


def library_folder(prefix):
    for folder, _, names in os.walk(prefix):
        if "libpagetide.so" in names:
            return folder
    raise AssertionError("no libpagetide.so installed")


def run_user(program, prefix):
    for backend, touch in (("sim", ""), ("host", "touch")):
        for args, environment in (([backend, touch], {}), (["", touch], {"PAGETIDE_DEVICE": backend})):
            command = [program, *args] if args[0] else [program]
            said = output(*command, env={**os.environ, "LD_LIBRARY_PATH": library_folder(prefix), **environment})
            match = re.fullmatch(r"requested 3145728 reserved (\d+)\n", said)
            assert match and int(match[1]) >= 3145728, said


def a_user_finds_it_by_pkg_config(prefix):
    environment = {**os.environ, "PKG_CONFIG_PATH": os.path.join(library_folder(prefix), "pkgconfig")}
    flags = output("pkg-config", "--cflags", "--libs", "pagetide", env=environment).split()
    assert any(os.path.realpath(f[2:]).startswith(prefix) for f in flags if f.startswith("-I")), flags
    program = os.path.join(prefix, "user")
    output(COMPILER, "-Wall", "-Wextra", "-Werror", *FLAGS, os.path.join(HERE, "user.c"), *flags, "-o", program)
    run_user(program, prefix)


def a_user_finds_it_by_cmake(prefix):
    project = os.path.join(prefix, "project")
    os.makedirs(project)
    shutil.copy(os.path.join(HERE, "user.c"), project)
    with open(os.path.join(project, "CMakeLists.txt"), "w", encoding="utf-8") as f:
        f.write("cmake_minimum_required(VERSION 3.25)\nproject(user C)\nfind_package(pagetide 0.1 REQUIRED)\n"
                "add_executable(user user.c)\ntarget_link_libraries(user pagetide::pagetide)\n")
    build = os.path.join(project, "build")
    output("cmake", "-S", project, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_C_COMPILER={COMPILER}",
           f"-DCMAKE_C_FLAGS={' '.join(FLAGS)}")
    output("cmake", "--build", build)
    run_user(os.path.join(build, "user"), prefix)


def the_header_is_cplusplus_too(prefix):
    compiler = shutil.which("c++")
    if not compiler or FLAGS:
        return  # nothing to compile it with; or a sanitizer's run, which another build has done
    library = library_folder(prefix)
    program = os.path.join(prefix, "usercpp")
    output(compiler, "-Wall", "-Wextra", "-Werror", f"-I{prefix}/include", os.path.join(HERE, "user.cpp"),
           f"-L{library}", "-lpagetide", "-o", program)
    output(program, env={**os.environ, "LD_LIBRARY_PATH": library})


def the_installed_program_runs(prefix):
    said = output(os.path.join(prefix, "bin/pagetide"), "--version")
    assert re.fullmatch(r"pagetide \d+\.\d+\.\d+\n", said), said


def make_installs_where_it_is_told(prefix):
    if shutil.which("make"):
        said = output("make", "-n", "-C", SOURCE, "install", f"PREFIX={prefix}")
        assert re.search(rf'cmake --install build --prefix "{re.escape(prefix)}"', said), said
        assert "--prefix" not in output("make", "-n", "-C", SOURCE, "install")


def main():
    failed = 0
    cases = [only_public_symbols_leave_the_library, the_program_needs_no_other_library, files_are_where_they_belong,
             a_user_finds_it_by_pkg_config, a_user_finds_it_by_cmake, the_header_is_cplusplus_too,
             the_installed_program_runs, make_installs_where_it_is_told]
    with tempfile.TemporaryDirectory() as folder:
        folder = os.path.realpath(folder)
        output("cmake", "--install", BUILD, "--prefix", os.path.join(folder, "first"))
        prefix = os.path.join(folder, "moved")  # a prefix may be moved
        os.rename(os.path.join(folder, "first"), prefix)
        for case in cases:
            print(f"[ RUN      ] {case.__name__}", flush=True)
            try:
                case(prefix)
                print(f"[       OK ] {case.__name__}", flush=True)
            except (AssertionError, OSError) as error:
                failed += 1
                print(f"{error}\n[  FAILED  ] {case.__name__}", flush=True)
    print(f"{len(cases) - failed} passed, {failed} failed")
    return 1 if failed else 0


sys.exit(main())
