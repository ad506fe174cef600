// SPDX-License-Identifier: Apache-2.0
//! Finds the library, or builds it (feature `bundled`), and tells cargo how to link it. Needs no crate.
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

const VARIABLES: [&str; 5] = ["MEGADP_LIB_DIR", "MEGADP_LIBRARY", "MEGADP_SOURCE_DIR", "MEGADP_BUILD_DIR", "MEGADP_CMAKE_OPTIONS"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for name in VARIABLES {
        println!("cargo:rerun-if-env-changed={name}");
    }
    // Documentation is built if no library is.
    if env::var_os("DOCS_RS").is_some() {
        return;
    }
    let done = if env::var_os("CARGO_FEATURE_BUNDLED").is_some() { bundle() } else { find().and_then(|dir| link(&dir)) };
    if let Err(why) = done {
        println!("cargo:warning=megadp-sys: {why}");
        eprintln!("megadp-sys: {why}");
        exit(1);
    }
}

fn path_of(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The folder of libmegadp.so.
fn find() -> Result<PathBuf, String> {
    if let Some(dir) = path_of("MEGADP_LIB_DIR") {
        return with_library(&dir, "MEGADP_LIB_DIR");
    }
    if let Some(file) = path_of("MEGADP_LIBRARY") {
        return with_library(file.parent().unwrap_or(Path::new(".")), "MEGADP_LIBRARY");
    }
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    let asked = Command::new(env::var_os("PKG_CONFIG").unwrap_or("pkg-config".into())).args(["--variable=libdir", "megadp"]).output();
    match asked {
        Ok(answer) if answer.status.success() => {
            with_library(Path::new(String::from_utf8_lossy(&answer.stdout).trim()), "pkg-config megadp")
        }
        _ => Err("libmegadp was not found. Set MEGADP_LIB_DIR to the folder of libmegadp.so, or install the library \
                  where pkg-config finds megadp.pc, or turn on the feature `bundled`"
            .to_string()),
    }
}

fn with_library(dir: &Path, said_by: &str) -> Result<PathBuf, String> {
    let dir = fs::canonicalize(dir).map_err(|error| format!("{said_by}: {}{}: {error}", dir.display(), counted_from(dir)))?;
    if dir.join("libmegadp.so").exists() { Ok(dir) } else { Err(format!("{said_by}: there is no libmegadp.so in {}", dir.display())) }
}

/// cargo runs this in the package's own folder, not in its caller's.
fn counted_from(path: &Path) -> String {
    match env::current_dir() {
        Ok(here) if path.is_relative() => format!(" in {}", here.display()),
        _ => String::new(),
    }
}

/// Links the shared library. cargo puts folders below its own on LD_LIBRARY_PATH for `cargo run` and `cargo test`, of every crate that
/// depends on this one: so the library gets links there.
fn link(dir: &Path) -> Result<(), String> {
    let out = out_dir();
    let entries = fs::read_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name.to_string_lossy().starts_with("libmegadp") && name.to_string_lossy().contains(".so") {
            let link = out.join(&name);
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(entry.path(), &link).map_err(|error| format!("{}: {error}", link.display()))?;
        }
    }
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=dylib=megadp");
    println!("cargo:libdir={}", dir.display());
    Ok(())
}

/// Builds the static library and links it, with the C++ runtime, which Rust programs share with whatever else they use of C++.
fn bundle() -> Result<(), String> {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let source = path_of("MEGADP_SOURCE_DIR").unwrap_or_else(|| here.join("library"));
    // In the repository these are links: then its own folder is the one to build, as everything else that builds the library does.
    let cmake_lists = fs::canonicalize(source.join("CMakeLists.txt"));
    let Some(source) =
        cmake_lists.ok().and_then(|file| Some(file.parent()?.to_path_buf())).filter(|dir| dir.join("include/megadp.h").exists())
    else {
        return Err(format!(
            "the feature `bundled` builds megadp from its sources, which are not in {} (MEGADP_SOURCE_DIR)",
            source.display()
        ));
    };
    for part in ["CMakeLists.txt", "cmake", "include", "src"] {
        println!("cargo:rerun-if-changed={}", source.join(part).display());
    }
    let build = build_dir()?;
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&source).arg("-B").arg(&build).arg("-DCMAKE_BUILD_TYPE=Release");
    // Warnings of a compiler that we have not seen are no failure of a user's build.
    for option in ["TESTS", "EXAMPLES", "TOOLS", "BENCHMARKS", "WERROR"] {
        configure.arg(format!("-DMEGADP_{option}=OFF"));
    }
    configure.args(env::var("MEGADP_CMAKE_OPTIONS").unwrap_or_default().split_whitespace());
    run(&mut configure)?;
    let jobs = env::var("NUM_JOBS").unwrap_or("1".to_string());
    run(Command::new("cmake").arg("--build").arg(&build).args(["--target", "megadp_static", "--parallel", &jobs]))?;
    println!("cargo:rustc-link-search=native={}", build.join("lib").display());
    println!("cargo:rustc-link-lib=static=megadp");
    println!("cargo:rustc-link-lib=dylib=stdc++");
    Ok(())
}

/// Cargo's own folder, which goes with `cargo clean`, or one that outlives that.
fn build_dir() -> Result<PathBuf, String> {
    let dir = path_of("MEGADP_BUILD_DIR").unwrap_or_else(|| out_dir().join("build"));
    fs::create_dir_all(&dir)
        .and_then(|()| fs::canonicalize(&dir))
        .map_err(|error| format!("the folder to build in, {}: {error}", dir.display()))
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} ended with {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

fn out_dir() -> PathBuf {
    PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"))
}
