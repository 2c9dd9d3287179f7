// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the two ways in which Slurm shares a node.

use proptest::prelude::*;
use usher_policy::baselines::{Gang, Oversubscribe, RequestedCores};

use crate::shapes::perfect;
use crate::world::{World, machine, truth};

const SLICE_NS: u64 = 1_000_000_000;

fn requested(cores: &[usize]) -> RequestedCores {
    let name = |at: usize| format!("p{}", at + 1);
    cores
        .iter()
        .enumerate()
        .map(|(at, &n)| (name(at), n))
        .collect()
}

/// A node of four cores with these jobs.
fn node(cores: &[usize]) -> World {
    let mut world = World::new(&machine(1, 4));
    for id in 1..=cores.len() as u64 {
        world.arrive(truth(id, perfect, 4.0));
    }
    world
}

fn running(world: &World, jobs: usize) -> Vec<u64> {
    (1..=jobs as u64)
        .filter(|&id| !world.is_frozen(id))
        .collect()
}

#[test]
fn stacked_jobs_get_the_lowest_free_cores_of_a_row() {
    let cores = [2, 3, 2, 4];
    let mut world = node(&cores);
    let mut policy = Oversubscribe::new(machine(1, 4), requested(&cores), 3);
    world.run(&mut policy, 1.0);
    let masks: Vec<String> = (1..=4).map(|id| world.mask(id).to_string()).collect();
    // Rows: jobs 1 and 3, job 2, job 4.
    assert_eq!(masks, ["0-1", "0-2", "2-3", "0-3"]);
    assert_eq!(running(&world, 4), [1, 2, 3, 4]);
}

#[test]
fn a_waiting_job_gets_the_cores_of_a_job_that_departs() {
    let cores = [4, 4, 2];
    let mut world = node(&cores);
    let mut policy = Oversubscribe::new(machine(1, 4), requested(&cores), 1);
    world.run(&mut policy, 1.0);
    assert_eq!(running(&world, 3), [1]);
    world.depart(1);
    world.run(&mut policy, 1.0);
    assert!(!world.is_frozen(2) && world.is_frozen(3));
}

#[test]
fn gang_jobs_run_in_turn_and_fill_free_cores() {
    let cores = [4, 3, 1];
    let mut world = node(&cores);
    let mut policy = Gang::new(machine(1, 4), requested(&cores), 4, SLICE_NS);
    let mut order = Vec::new();
    for _ in 0..4 {
        world.run(&mut policy, 0.5);
        order.push(running(&world, 3));
        world.run(&mut policy, 0.5);
    }
    // Jobs 2 and 3 have no core in common.
    assert_eq!(order, [vec![1], vec![2, 3], vec![1], vec![2, 3]]);
    world.depart(2);
    world.depart(3);
    world.run(&mut policy, 0.1);
    assert_eq!(running(&world, 1), [1], "a free node is used at once");
}

proptest! {
    /// Jobs that run at the same time have no core in common, no core is idle while a job could use
    /// it, and in each round of slices, one per job, each job runs once.
    #[test]
    fn gang_jobs_do_not_overlap_and_none_starves(
        cores in prop::collection::vec(1..=4_usize, 1..7),
        departs in 0..8_u64,
    ) {
        let jobs = cores.len();
        let mut world = node(&cores);
        let mut policy = Gang::new(machine(1, 4), requested(&cores), 8, SLICE_NS);
        let mut ran = vec![0; jobs];
        for slice in 0..2 * jobs {
            world.run(&mut policy, 0.5);
            let present = |id: &u64| !(slice > jobs && *id == departs);
            let active: Vec<u64> = (1..=jobs as u64)
                .filter(present)
                .filter(|&id| !world.is_frozen(id))
                .collect();
            prop_assert!(!active.is_empty() || jobs == 1);
            for (at, &a) in active.iter().enumerate() {
                ran[a as usize - 1] += 1;
                prop_assert!(active[..at].iter().all(|&b| !world.mask(a).intersects(&world.mask(b))));
            }
            for id in (1..=jobs as u64).filter(present).filter(|id| !active.contains(id)) {
                prop_assert!(active.iter().any(|&other| world.mask(other).intersects(&world.mask(id))));
            }
            if slice == jobs {
                world.depart(departs);
            }
            world.run(&mut policy, 0.5);
            if slice + 1 == jobs {
                prop_assert!(ran.iter().all(|&count| count > 0), "{:?}", ran);
            }
        }
    }
}
