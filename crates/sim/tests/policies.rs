// SPDX-License-Identifier: MIT OR Apache-2.0
//! What policies make of mixes in which it matters, on the machine of paper 1.

#![allow(clippy::unwrap_used)]

use usher_sim::campaign::{Campaign, MixRow, Scheduler, cast};
use usher_sim::machine::Machine;
use usher_sim::parsec::programs;
use usher_sim::setup::{PAPER_1, Setup};
use usher_topology::Source;

/// A mix of programs of these names under these schedulers.
fn mix(names: [&str; 4], schedulers: &[Scheduler]) -> MixRow {
    let topology = usher_topology::load(Source::Synthetic(PAPER_1.to_owned())).unwrap();
    let setup = Setup::new(programs().unwrap());
    let machine = Machine::new(topology, setup.costs.clone());
    let mut models = setup.models;
    models.retain(|model| names.contains(&model.name.as_str()));
    let players = cast(&models, &machine, &setup.kernel, 24.0, 1).unwrap();
    let campaign = Campaign {
        machine: &machine,
        kernel: &setup.kernel,
        cast: &players,
        schedulers,
        steady_s: 5.0,
        scale: setup.native_s / 24.0,
        seed: 1,
    };
    let row = campaign.run(&[vec![0, 1, 2, 3]], 1, &|_| {}).unwrap();
    eprintln!("{names:?}: {:?}", row[0].antt);
    row[0].clone()
}

#[test]
fn two_on_both_their_seats_beat_the_best_seats_of_their_own() {
    let names = ["bodytrack", "dedup", "raytrace", "streamcluster"];
    let row = mix(names, &[Scheduler::Usher, Scheduler::OracleLending]);
    assert!(row.antt[&Scheduler::Usher] < row.antt[&Scheduler::OracleLending]);
}

#[test]
fn newcomers_do_nearly_as_well_as_known_programs() {
    let names = ["blackscholes", "dedup", "fluidanimate", "x264"];
    let row = mix(names, &[Scheduler::Usher, Scheduler::UsherCold]);
    assert!(row.antt[&Scheduler::UsherCold] < 1.05 * row.antt[&Scheduler::Usher]);
}

#[test]
fn where_seats_gain_nothing_the_kernel_is_left_alone() {
    let names = ["bodytrack", "freqmine", "raytrace", "x264"];
    let row = mix(names, &[Scheduler::Linux, Scheduler::UsherCold]);
    assert!(row.antt[&Scheduler::UsherCold] < 1.02 * row.antt[&Scheduler::Linux]);
}
