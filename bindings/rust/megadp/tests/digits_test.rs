// SPDX-License-Identifier: Apache-2.0
//! The examples train the digits on 1 and 2 ranks, with the losses of the reference.
mod ranks;

#[test]
fn plain_rust_trains_as_the_reference() {
    let outputs = ranks::check_losses("digits_mlp");
    // Two buckets at least, and all but the last of each step before its sync, since the last one gets full as backward ends: also there.
    let last = outputs[1].lines().last().unwrap();
    let numbers: Vec<u64> = last.split(' ').filter_map(|word| word.parse().ok()).collect();
    assert!(numbers[0] >= 200 && numbers[0] == numbers[1], "{last}");
}
