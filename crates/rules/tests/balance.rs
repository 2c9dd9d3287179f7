// SPDX-License-Identifier: MIT OR Apache-2.0
//! When one LLC takes from another.

use usher_rules::balance::{self, BALANCE_PERIOD_NS, Load, Surplus};

/// Of LLCs of any size: whoever is taken from another node would not be taken back; within
/// one, whoever waits where more do for each CPU goes round.
#[test]
fn a_thread_is_taken_where_that_evens_them_out() {
    let load = |waiting, cpus| Load { waiting, cpus };
    let of_four =
        |there, here, in_node| balance::surplus_of(load(there, 4), load(here, 4), false, in_node);
    assert_eq!(of_four(2, 0, false), Surplus::Many);
    assert_eq!(of_four(1, 0, false), Surplus::None);
    assert_eq!(of_four(1, 0, true), Surplus::One);
    assert_eq!(of_four(1, 1, true), Surplus::None);
    // As many wait for ten times as many.
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
        // Where the last thread sleeps, one that waits here is about to run.
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

/// An LLC looks at every other as often as at any, and never at itself.
#[test]
fn an_llc_looks_at_all_others() {
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

/// Of two LLCs of which each looks as often as it may: by one too many a thread is there for
/// as long as it was here; by more the next CPU goes on at once.
#[test]
fn whoever_is_one_too_many_stays_for_as_long_as_any() {
    let (mut here_ns, mut there_ns) = (0, 0);
    assert!(balance::begins_balance(7, &mut here_ns));
    assert!(
        !balance::begins_balance(8, &mut here_ns),
        "one looks for all"
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
        "there are more"
    );
    assert_eq!(there_ns, before_ns);
}

/// Clocks overflow.
#[test]
fn looks_go_on_when_the_clock_begins_anew() {
    let mut at_ns = u64::MAX - 3;
    assert!(!balance::begins_balance(u64::MAX - 4, &mut at_ns));
    assert!(balance::begins_balance(2, &mut at_ns));
    assert_eq!(at_ns, 2 + BALANCE_PERIOD_NS);
}
