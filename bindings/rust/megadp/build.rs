// SPDX-License-Identifier: Apache-2.0
//! Hands on where the library lies. cargo passes a link argument to the programs of the package whose build script asks for it, to no
//! other: here to this package's tests and examples; its dependents get the argument as DEP_MEGADP_RS_RPATH, to ask for it themselves.
use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Not there when the library is bundled, that is, part of the program.
    if let Ok(dir) = env::var("DEP_MEGADP_LIBDIR") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{dir}");
        println!("cargo:rpath=-Wl,-rpath,{dir}");
        println!("cargo:libdir={dir}");
    }
}
