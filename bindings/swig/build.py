#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the module of one language from megadp.i: java, lua, ruby, perl, tcl, csharp or r (Go's own tool makes Go's, see go/README.md).

usage: bindings/swig/build.py LANGUAGE [FOLDER]      (FOLDER: build/bindings/swig/LANGUAGE of this checkout)

Links with the library that the environment variable MEGADP_LIBRARY names, or the checkout's build/lib/libmegadp.so, and compiles with CXX
(c++). Does nothing where all is as it was. Prints what it made. Leaves with 77 and a reason where the language's tools are missing.
"""
import glob
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys

SWIG = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(SWIG))


class Missing(Exception):
    """A tool that is not installed."""


def need(*names):
    for name in names:
        if shutil.which(name):
            return shutil.which(name)
    raise Missing(f"{' or '.join(names)} is not installed (scripts/setup_swig)")


def ask(*command):
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise Missing(f"{' '.join(command)} does not work: {(answer.stderr or answer.stdout).strip()[-200:]} (scripts/setup_swig)")
    return answer.stdout.strip()


def run(*command, **options):
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{ended.stdout}")
    return ended.stdout


def library():
    path = os.environ.get("MEGADP_LIBRARY") or os.path.join(ROOT, "build", "lib", "libmegadp.so")
    if not os.path.exists(path):
        sys.exit(f"{path} is not there: run scripts/build, or name a libmegadp.so by MEGADP_LIBRARY")
    return os.path.realpath(path)


def headers_in(folder, header, package):
    """The folder, if it has the header that a module is compiled with."""
    if not os.path.exists(os.path.join(folder, header)):
        raise Missing(f"{os.path.join(folder, header)} is not there; {package} has it (scripts/setup_swig)")
    return folder


def compile_module(wrapper, target, flags, rpath=True):
    """One shared object. It finds the library where it was built, unless LD_LIBRARY_PATH has another one. Compiled apart from linking, so that
    ccache, where it is, has the first: a wrapper seldom changes with the library."""
    found, compiler, compiled = library(), os.environ.get("CXX", "c++").split(), f"{wrapper}.o"
    cached = [shutil.which("ccache")] if shutil.which("ccache") and "ccache" not in compiler[0] else []
    run(*cached, *compiler, "-std=c++17", "-O1", "-fPIC", "-I", SWIG, "-I", os.path.join(ROOT, "include"), *flags, "-c", wrapper, "-o", compiled)
    run(*compiler, "-shared", compiled, found, "-o", target,
        *([f"-Wl,-rpath,{os.path.dirname(found)}"] if rpath else ["-static-libstdc++", "-static-libgcc"]))


def wrap(folder, *options):
    wrapper = os.path.join(folder, "megadp_wrap.cxx")
    run(need("swig4.0", "swig"), "-c++", "-I" + SWIG, *options, "-outdir", folder, "-o", wrapper, os.path.join(SWIG, "megadp.i"))
    return wrapper


def java_home():
    javac = os.path.realpath(need("javac"))
    return os.path.dirname(os.path.dirname(javac))


def build_java(folder):
    """A jar with the classes, this machine's wrapper and libmegadp.so.0 inside; for Java 8 and newer."""
    include = headers_in(os.path.join(java_home(), "include"), "jni.h", "the JDK")
    sources, classes = os.path.join(folder, "src", "megadp"), os.path.join(folder, "classes")
    native = os.path.join(classes, "megadp", "native", f"linux-{ {'x86_64': 'amd64'}.get(platform.machine(), platform.machine())}")
    for path in (sources, native):
        os.makedirs(path)
    wrapper = os.path.join(folder, "megadp_wrap.cxx")
    run(need("swig4.0", "swig"), "-c++", "-java", "-doxygen", "-module", "MegaDP", "-package", "megadp", "-I" + SWIG, "-outdir", sources,
        "-o", wrapper, os.path.join(SWIG, "megadp.i"))
    compile_module(wrapper, os.path.join(native, "libmegadp_java.so"), ["-I", include, "-I", os.path.join(include, "linux")], rpath=False)
    shutil.copy(library(), os.path.join(native, "libmegadp.so.0"))
    written = glob.glob(os.path.join(SWIG, "java", "src", "megadp", "*.java"))
    run(need("javac"), "--release", "8", "-Xlint:-options", "-encoding", "UTF-8", "-d", classes, *written,
        *glob.glob(os.path.join(sources, "*.java")))
    jar = os.path.join(folder, "megadp.jar")
    run(need("jar"), "cf", jar, "-C", classes, ".")
    return jar


def build_lua(folder):
    need("lua5.4")
    flags = ask(need("pkg-config"), "--cflags", "lua5.4").split()
    target = os.path.join(folder, "megadp.so")
    compile_module(wrap(folder, "-lua"), target, flags)
    return target


def build_ruby(folder):
    config = 'puts RbConfig::CONFIG.values_at("rubyhdrdir", "rubyarchhdrdir")'
    common, machine = ask(need("ruby"), "-rrbconfig", "-e", config).split("\n")
    headers_in(common, "ruby.h", "ruby-dev")
    target = os.path.join(folder, "megadp.so")
    compile_module(wrap(folder, "-ruby"), target, ["-I", common, "-I", machine])
    return target


def build_perl(folder):
    answer = ask(need("perl"), "-MConfig", "-e", 'print "$Config{ccflags}\n$Config{archlibexp}/CORE"')
    flags, core = answer.split("\n")
    headers_in(core, "perl.h", "libperl-dev")
    target = os.path.join(folder, "megadp.so")
    compile_module(wrap(folder, "-perl5"), target, [*flags.split(), "-I", core])
    return target


def build_tcl(folder):
    need("tclsh")
    flags = ask(need("pkg-config"), "--cflags", "tcl").split()
    target = os.path.join(folder, "megadp.so")
    compile_module(wrap(folder, "-tcl8", "-namespace"), target, flags)
    return target


def build_csharp(folder):
    compiler = need("mcs")
    sources = os.path.join(folder, "src")
    os.makedirs(sources)
    wrapper = os.path.join(folder, "megadp_wrap.cxx")
    run(need("swig4.0", "swig"), "-c++", "-csharp", "-namespace", "MegaDP", "-module", "Native", "-dllimport", "megadp_csharp", "-I" + SWIG,
        "-outdir", sources, "-o", wrapper, os.path.join(SWIG, "megadp.i"))
    compile_module(wrapper, os.path.join(folder, "libmegadp_csharp.so"), [])
    target = os.path.join(folder, "MegaDP.dll")
    run(compiler, "-target:library", "-out:" + target, *glob.glob(os.path.join(SWIG, "languages", "*.cs")),
        *glob.glob(os.path.join(sources, "*.cs")))
    return target


def mend_enumerations(folder, wrapper):
    """SWIG 4.1's R code asks for the values of an `enum class` by names that its wrapper registers with the class's name twice."""
    with open(wrapper, encoding="utf-8") as file:
        registered = set(re.findall(r'"(R_swig_\w+_get)"', file.read()))

    def mended(match):
        twice = f"R_swig_{match[1]}_{match[1]}_{match[2]}_get"
        return f".Call('{twice if twice in registered else match[0][7:-1]}'"

    path = os.path.join(folder, "megadp.R")
    with open(path, encoding="utf-8") as file:
        text = re.sub(r"\.Call\('R_swig_([A-Za-z]+)_(\w+)_get'", mended, file.read())
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def mend_sentences(folder, wrapper):
    """SWIG 4.1's R code puts a code of its own before each sentence, and asks itself without end for a field that a class does not have. What
    constructors make would have a finalizer in R beside the one that all objects have (r.i)."""
    script = os.path.join(folder, "megadp.R")
    absent = 'stop(name, " is no field of ", sub(".*__", "", class(x)), "; it has: ", toString(names(accessorFuns)));'
    # As often as the text beside it is there.
    mends = [(wrapper, r'return "SWIG:TypeError";', 'return "wrong argument:";', "case SWIG_TypeError:"),
             (script, r"return\(callNextMethod\(x, name(, value)?\)\);", absent, "idx = pmatch(name, names(accessorFuns));"),
             (script, r"pmatch\(name, names\(accessorFuns\)\)", "match(name, names(accessorFuns))", "pmatch(name,"),
             (script, r" *reg\.finalizer\(ans@ref, delete_\w+\);\n", "", "reg.finalizer(")]
    for path, old, new, beside in mends:
        with open(path, encoding="utf-8") as file:
            before = file.read()
        text, count = re.subn(old, lambda match, new=new: new, before)
        if count == 0 or count != before.count(beside):
            sys.exit(f"{path}: {old} is there {count} times, and {beside} {before.count(beside)} times: SWIG's R code is another one")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def mend_assignments(folder):
    """SWIG's R code sets a field in the object that all its names share; in R a name whose field is set has a copy of its own from then on."""

    def mended(match):
        if f"`{match[2]}_copy` = " not in before:
            sys.exit(f"{match[2]} has fields that can be set, and no MEGADP_COPY in languages/scripting.i")
        return f"{match[1]}  f(x <- {match[2]}_copy(x), value);"

    path = os.path.join(folder, "megadp.R")
    with open(path, encoding="utf-8") as file:
        before = file.read()
    text, count = re.subn(r"(setMethod\('(?:\$|\[\[)<-', (?:c\()?'_p_megadp__(\w+)'(?:(?!setMethod)[\s\S])*?\n)  f\(x, value\);", mended, before)
    if count == 0 or count != before.count("f(x, value);"):
        sys.exit(f"{path}: {count} of {before.count('f(x, value);')} assignments of fields are known: SWIG's R code is another one")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def build_r(folder):
    flags = ask(need("R"), "CMD", "config", "--cppflags").split()
    target = os.path.join(folder, "megadp.so")
    wrapper = wrap(folder, "-r")
    mend_enumerations(folder, wrapper)
    mend_sentences(folder, wrapper)
    mend_assignments(folder)
    compile_module(wrapper, target, flags)
    return target


BUILDERS = {name[len("build_"):]: function for name, function in list(globals().items()) if name.startswith("build_")}


def fingerprint(language):
    """Of everything that a module is made from."""
    tools = (language, os.environ.get("CXX"), shutil.which("swig"))
    patterns = ["build.py", "*.i", os.path.join("*", "*.i"), os.path.join("shim", "*.h")]
    linked = []
    if language != "go":  # which is linked anew by its own tool
        patterns += [os.path.join("languages", "*.cs"), os.path.join("java", "src", "megadp", "*.java")]
        linked.append(library())
    digest = hashlib.sha256(repr((tools, linked)).encode())
    files = [path for pattern in patterns for path in sorted(glob.glob(os.path.join(SWIG, pattern)))]
    for path in [*sorted(glob.glob(os.path.join(ROOT, "include", "*.h"))), *linked, *files]:
        with open(path, "rb") as file:
            digest.update(hashlib.sha256(file.read()).digest())
    return digest.hexdigest()


def build(language, folder):
    """Path of what was made, in `folder`, which is emptied before."""
    made, stamp = os.path.join(folder, "made"), fingerprint(language)
    if os.path.exists(made):
        with open(made, encoding="utf-8") as file:
            before, target = file.read().split("\n")
        if before == stamp and os.path.exists(target):
            return target
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    target = BUILDERS[language](folder)
    with open(made, "w", encoding="utf-8") as file:
        file.write(f"{stamp}\n{target}")
    return target


def main(arguments):
    if not 1 <= len(arguments) <= 2 or arguments[0] not in BUILDERS:
        sys.exit(__doc__)
    folder = arguments[1] if len(arguments) == 2 else os.path.join(ROOT, "build", "bindings", "swig", arguments[0])
    try:
        print(build(arguments[0], os.path.abspath(folder)))
    except Missing as missing:
        print(missing)
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
