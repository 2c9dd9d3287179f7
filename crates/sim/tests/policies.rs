// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of policies on the machine of paper 1, for mixes in which the choice of the policy
//! matters.

#![allow(clippy::unwrap_used)]

use usher_sim::campaign::{Campaign, MixRow, Scheduler, measure_programs};
use usher_sim::machine::Machine;
use usher_sim::parsec::programs;
use usher_sim::setup::{EvaluationSetup, PAPER_1};
use usher_sim::slurm_node::SlurmNode;
use usher_topology::Source;

/// Returns the results of the mix of these programs under these schedulers.
fn mix(names: [&str; 4], schedulers: &[Scheduler]) -> MixRow {
    let topology = usher_topology::load(Source::Synthetic(PAPER_1.to_owned())).unwrap();
    let setup = EvaluationSetup::new(programs().unwrap());
    let machine = Machine::new(topology, setup.costs.clone());
    let mut models = setup.models;
    models.retain(|model| names.contains(&model.name.as_str()));
    let programs = measure_programs(&models, &machine, &setup.kernel, 24.0, 1).unwrap();
    let campaign = Campaign {
        machine: &machine,
        kernel: &setup.kernel,
        programs: &programs,
        schedulers,
        steady_s: 5.0,
        node: SlurmNode::default(),
        scale: setup.native_s / 24.0,
        seed: 1,
    };
    let row = campaign.run(&[vec![0, 1, 2, 3]], 1, &|_| {}).unwrap();
    eprintln!("{names:?}: {:?}", row[0].antt);
    row[0].clone()
}

#[test]
fn lending_beats_the_best_static_seats() {
    let names = ["bodytrack", "dedup", "raytrace", "streamcluster"];
    let row = mix(names, &[Scheduler::Usher, Scheduler::OracleLending]);
    assert!(row.antt[&Scheduler::Usher] < row.antt[&Scheduler::OracleLending]);
}

#[test]
fn unknown_programs_do_nearly_as_well_as_known_ones() {
    let names = ["blackscholes", "dedup", "fluidanimate", "x264"];
    let row = mix(names, &[Scheduler::Usher, Scheduler::UsherCold]);
    assert!(row.antt[&Scheduler::UsherCold] < 1.05 * row.antt[&Scheduler::Usher]);
}

#[test]
fn kernel_is_left_alone_where_seats_gain_nothing() {
    let names = ["bodytrack", "freqmine", "raytrace", "x264"];
    let row = mix(names, &[Scheduler::Linux, Scheduler::UsherCold]);
    assert!(row.antt[&Scheduler::UsherCold] < 1.02 * row.antt[&Scheduler::Linux]);
}
