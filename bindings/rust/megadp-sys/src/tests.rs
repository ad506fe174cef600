// SPDX-License-Identifier: Apache-2.0
//! This crate's mirror of megadp.h against abi.json, which the build of the library writes (MEGADP_ABI_JSON names the file).
extern crate std;
use crate::{layers_layout, layout};
use serde_json::Value;
use std::collections::BTreeSet;
use std::{env, format, fs, string::String, vec::Vec};

fn abi() -> Value {
    let path = env::var("MEGADP_ABI_JSON").expect("MEGADP_ABI_JSON names lib/abi.json of the library's build");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_str(&text).unwrap()
}

fn structs() -> impl Iterator<Item = &'static layout::Struct> {
    layout::STRUCTS.iter().chain(layers_layout::STRUCTS)
}

/// What differs between the structs of abi.json and ours, one line each.
fn struct_differences(abi: &Value) -> Vec<String> {
    let theirs = abi["structs"].as_object().unwrap();
    let mut found = Vec::new();
    let names: BTreeSet<&str> = structs().map(|of| of.0).collect();
    for missing in theirs.keys().filter(|name| !names.contains(name.as_str())) {
        found.push(format!("{missing} is not here"));
    }
    for (name, size, align, fields) in structs() {
        let Some(their) = theirs.get(*name) else {
            found.push(format!("{name} is not in abi.json"));
            continue;
        };
        if their["size"] != *size || their["align"] != *align {
            found.push(format!("{name} has {size} bytes aligned to {align} here, in abi.json {their}"));
        }
        if their["fields"].as_object().unwrap().len() != fields.len() {
            found.push(format!("{name} has {} fields here", fields.len()));
        }
        for (field, offset) in *fields {
            if their["fields"][field] != *offset {
                found.push(format!("{name}.{field} is at {offset} here, in abi.json at {}", their["fields"][field]));
            }
        }
    }
    found
}

#[test]
fn structs_are_laid_out_as_in_c() {
    assert_eq!(struct_differences(&abi()), Vec::<String>::new());
}

#[test]
fn a_difference_would_be_seen() {
    let mut abi = abi();
    abi["structs"]["mdp_tensor"]["fields"]["data"] = 28.into();
    abi["structs"]["mdp_range"]["size"] = 1.into();
    abi["structs"]["mdp_new"] = abi["structs"]["mdp_param_group"].clone();
    assert_eq!(struct_differences(&abi).len(), 3);
}

#[test]
fn enumerators_have_the_values_of_c() {
    let abi = abi();
    let theirs: Vec<(&str, i64)> =
        abi["enums"].as_object().unwrap().iter().map(|(name, value)| (name.as_str(), value.as_i64().unwrap())).collect();
    let mut ours = [layout::VALUES, layers_layout::VALUES].concat();
    ours.sort_unstable();
    assert_eq!(ours, theirs); // serde_json sorts by name
}

#[test]
fn every_function_is_declared_and_links() {
    let abi = abi();
    let theirs: Vec<&str> = abi["functions"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let ours = layout::functions();
    assert_eq!(ours.iter().map(|function| function.0).collect::<Vec<_>>(), theirs);
    assert!(ours.iter().all(|function| !function.1.is_null()));
}

#[test]
fn the_library_is_the_one_that_abi_json_describes() {
    // SAFETY: takes nothing and cannot fail.
    let version = unsafe { crate::mdp_version() };
    let text = format!("{}.{}.{}", version >> 16, version >> 8 & 255, version & 255);
    assert_eq!(abi()["version"], text.as_str());
}
