// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of load balancing between LLCs, by the functions of balance.h alone: which loads cause a
//! migration, which LLC is checked, and when.

use usher_rules::balance::{self, BALANCE_PERIOD_NS, Load, Surplus};

/// For LLCs of any size: after a migration between nodes, the other LLC would not take the thread
/// back. Within a node, a thread migrates whenever the load per CPU differs.
#[test]
fn migration_reduces_imbalance() {
    let load = |waiting, cpus| Load { waiting, cpus };
    let of_four =
        |there, here, in_node| balance::surplus_of(load(there, 4), load(here, 4), false, in_node);
    assert_eq!(of_four(2, 0, false), Surplus::Many);
    assert_eq!(of_four(1, 0, false), Surplus::None);
    assert_eq!(of_four(1, 0, true), Surplus::One);
    assert_eq!(of_four(1, 1, true), Surplus::None);
    // The LLCs have equal numbers of waiting threads, but one LLC has ten times the CPUs of the
    // other.
    for in_node in [false, true] {
        let find = |there, here| balance::surplus_of(there, here, false, in_node);
        assert_eq!(find(load(11, 2), load(11, 20)), Surplus::Many);
        assert_eq!(find(load(11, 20), load(11, 2)), Surplus::None);
        assert_eq!(find(load(0, 2), load(0, 20)), Surplus::None);
    }
    let numbers = (0..5_u32).flat_map(|there| (0..5).map(move |here| (there, here)));
    let sizes = [(1, 1), (1, 3), (4, 1), (2, 20)];
    for ((there, here), (cpus_there, cpus_here)) in
        numbers.flat_map(|numbers| sizes.map(|sizes| (numbers, sizes)))
    {
        let of = (load(there, cpus_there), load(here, cpus_here));
        let far = balance::surplus_of(of.0, of.1, false, false);
        let near = balance::surplus_of(of.0, of.1, false, true);
        let more_for_each = there * cpus_here > here * cpus_there;
        assert_eq!(near != Surplus::None, more_for_each, "{of:?}");
        assert_eq!(far == Surplus::Many, near == Surplus::Many, "{of:?}");
        assert_ne!(far, Surplus::One, "{of:?}");
        if far == Surplus::Many {
            let after = (load(there - 1, cpus_there), load(here + 1, cpus_here));
            let back = balance::surplus_of(after.1, after.0, false, false);
            assert_eq!(back, Surplus::None, "{of:?}");
        }
        // If the thread that ran last sleeps, one waiting thread of the own LLC is about to run and
        // does not count.
        for in_node in [false, true] {
            let less = load(here.saturating_sub(1), cpus_here);
            assert_eq!(
                balance::surplus_of(of.0, of.1, true, in_node),
                balance::surplus_of(of.0, less, false, in_node),
                "{of:?}"
            );
        }
    }
}

/// Each other LLC is checked with equal probability, and an LLC never checks itself.
#[test]
fn every_other_llc_is_checked() {
    assert_eq!(balance::other_llc(0, 1, 7), 0);
    for (llcs, here) in (2..9).flat_map(|llcs| (0..llcs).map(move |here| (llcs, here))) {
        let each = llcs as u32 - 1;
        let mut seen: Vec<usize> = (0..each)
            .map(|drawn| balance::other_llc(here, llcs, drawn + 3 * each))
            .collect();
        seen.sort_unstable();
        let others: Vec<usize> = (0..llcs).filter(|&llc| llc != here).collect();
        assert_eq!(seen, others);
    }
}

/// Two LLCs check each other at the highest permitted rate. A single surplus thread then stays for
/// equal times in each LLC. With a larger surplus, the next CPU may check again at once.
#[test]
fn surplus_thread_stays_equally_long_in_both_llcs() {
    let (mut here_ns, mut there_ns) = (0, 0);
    assert!(balance::begins_balance(7, &mut here_ns));
    assert!(
        !balance::begins_balance(8, &mut here_ns),
        "one check per LLC and period"
    );
    balance::end_balance(Surplus::One, 7, &mut here_ns, &mut there_ns);
    for at_ns in [8, 6 + BALANCE_PERIOD_NS] {
        assert!(!balance::begins_balance(at_ns, &mut here_ns));
        assert!(!balance::begins_balance(at_ns, &mut there_ns), "taken back");
    }
    let due_ns = 7 + BALANCE_PERIOD_NS;
    assert!(balance::begins_balance(due_ns, &mut there_ns));
    assert!(balance::begins_balance(due_ns, &mut here_ns));
    let before_ns = there_ns;
    balance::end_balance(Surplus::Many, due_ns, &mut here_ns, &mut there_ns);
    assert!(
        balance::begins_balance(due_ns, &mut here_ns),
        "the surplus remains"
    );
    assert_eq!(there_ns, before_ns);
}

/// The clock of the kernel may overflow between two checks.
#[test]
fn checks_continue_after_clock_overflow() {
    let mut at_ns = u64::MAX - 3;
    assert!(!balance::begins_balance(u64::MAX - 4, &mut at_ns));
    assert!(balance::begins_balance(2, &mut at_ns));
    assert_eq!(at_ns, 2 + BALANCE_PERIOD_NS);
}
