// SPDX-License-Identifier: MIT OR Apache-2.0
//! The evaluation of `usher advise` on simulated machines.

#![allow(clippy::unwrap_used)] // helpers of tests

use usher_sim::advise::{NoiseModel, evaluate};
use usher_sim::parsec::programs;
use usher_topology::{Source, load};

#[test]
fn most_choices_are_near_the_best_in_a_part_of_the_time_of_a_sweep() {
    let topology = load(Source::Synthetic("core:8 pu:1".to_owned())).unwrap();
    let run = |workers| {
        evaluate(
            &topology,
            &programs().unwrap(),
            10,
            NoiseModel::default(),
            1,
            workers,
        )
    };
    let result = run(2);
    assert_eq!(
        result,
        run(1),
        "the result does not depend on the number of threads"
    );
    assert_eq!(result.programs.len(), 10);
    assert!(result.near_best >= 0.8, "{result:?}");
    assert!(result.time_share <= 0.4, "{result:?}");
    assert!(result.programs.iter().all(|one| one.best_by_chosen >= 1.0));
    // Programs that scale partly gain by several copies, so that the choice matters.
    let several = result
        .programs
        .iter()
        .filter(|one| one.best.is_some_and(|c| c.copies > 1));
    assert!(several.count() > 0, "{result:?}");
}
