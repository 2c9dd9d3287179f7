// SPDX-License-Identifier: MIT OR Apache-2.0
//! The division of CPUs among copies, compared with all orders of parts.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use usher_model::CpuSet;
use usher_policy::copies::divide;

use crate::program::caches;

/// Returns the number of groups (caches or cores) of a part, minus one.
fn splits(part: &CpuSet, group: impl Fn(u32) -> usize) -> usize {
    let groups: BTreeSet<usize> = part.iter().map(group).collect();
    usize::from(groups.len() > 1)
}

/// Returns the least number of split parts over all orders of larger and smaller consecutive parts.
fn least_splits(groups: &[usize], copies: usize) -> usize {
    let (least, larger) = (groups.len() / copies, groups.len() % copies);
    (0u32..1 << copies)
        .filter(|order| order.count_ones() as usize == larger)
        .map(|order| {
            let mut begin = 0;
            let mut split = 0;
            for copy in 0..copies {
                let end = begin + least + usize::from(order & (1 << copy) != 0);
                split += usize::from(groups[begin] != groups[end - 1]);
                begin = end;
            }
            split
        })
        .min()
        .unwrap()
}

proptest! {
    #[test]
    fn a_division_is_even_complete_and_splits_as_few_groups_as_possible(
        cores in prop::collection::vec(1usize..5, 1..4),
        smt in 1u32..3,
        copies in 1usize..14,
        without in prop::collection::btree_set(0u32..16, 0..4),
    ) {
        let machine = caches(&cores, smt);
        let removed: CpuSet = without.into_iter().collect();
        let seat = machine.all_cpus().minus(&removed);
        prop_assume!(!seat.is_empty());
        let parts = divide(&machine, &seat, copies);
        prop_assert_eq!(parts.len(), copies);
        let all = parts.iter().fold(CpuSet::new(), |all, part| all.or(part));
        prop_assert_eq!(&all, &seat);
        let core = |cpu: u32| machine.cpu(cpu).unwrap().core;
        let cache = |cpu: u32| machine.cores[core(cpu)].domain;
        let count = machine.cores_in(&seat).len();
        let sizes = |of: &dyn Fn(&CpuSet) -> usize| {
            let sizes: Vec<usize> = parts.iter().map(of).collect();
            (*sizes.iter().min().unwrap(), *sizes.iter().max().unwrap())
        };
        let (least, most) = if copies <= count {
            let groups: Vec<usize> =
                machine.cores_in(&seat).iter().map(|&c| machine.cores[c].domain).collect();
            let split: usize = parts.iter().map(|part| splits(part, cache)).sum();
            prop_assert_eq!(split, least_splits(&groups, copies));
            // No core is divided.
            let cores: usize = parts.iter().map(|part| machine.cores_in(part).len()).sum();
            prop_assert_eq!(cores, count);
            sizes(&|part| machine.cores_in(part).len())
        } else if copies <= seat.len() {
            let groups: Vec<usize> = machine
                .cores_in(&seat)
                .iter()
                .flat_map(|&c| machine.cores[c].cpus.and(&seat).iter().map(move |_| c).collect::<Vec<_>>())
                .collect();
            let split: usize = parts.iter().map(|part| splits(part, core)).sum();
            prop_assert_eq!(split, least_splits(&groups, copies));
            prop_assert_eq!(parts.iter().map(CpuSet::len).sum::<usize>(), seat.len());
            sizes(&CpuSet::len)
        } else {
            prop_assert!(parts.iter().all(|part| part.len() == 1));
            let mut load: BTreeMap<u32, usize> = BTreeMap::new();
            for part in &parts {
                *load.entry(part.first().unwrap()).or_default() += 1;
            }
            (*load.values().min().unwrap(), *load.values().max().unwrap())
        };
        prop_assert!(most - least <= 1, "{parts:?}");
    }
}

#[test]
fn copies_get_whole_cores_before_hardware_threads() {
    let machine = caches(&[2, 2], 2);
    let parts = |copies| {
        let parts = divide(&machine, &machine.all_cpus(), copies);
        parts
            .iter()
            .map(CpuSet::to_string)
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(parts(2), "0-3 4-7");
    assert_eq!(parts(4), "0-1 2-3 4-5 6-7");
    assert_eq!(parts(6), "0-1 2-3 4 5 6 7");
    assert_eq!(parts(0), "");
}
