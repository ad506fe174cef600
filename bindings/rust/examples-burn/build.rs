// SPDX-License-Identifier: Apache-2.0
//! Tells the program where the library lies; see megadp's README.
fn main() {
    if let Ok(rpath) = std::env::var("DEP_MEGADP_RS_RPATH") {
        println!("cargo:rustc-link-arg={rpath}");
    }
}
