// SPDX-License-Identifier: GPL-2.0-only
//! The first line of `usher status` and `usher top`: the prediction for the present seats, or what
//! holds instead of seats.

use usher_report::text;

use crate::api::{self, Copy_state, Program_mode};
use crate::output::shown;

/// Returns the headline of a state.
pub fn headline(state: &api::State) -> String {
    if state.seating_forbidden.is_some() {
        return "the daemon assigns no CPUs to programs".to_owned();
    }
    if state.programs.is_empty() {
        return "the daemon manages no program".to_owned();
    }
    let mut fixed = state.programs.iter().filter(|program| is_fixed(program));
    if fixed.any(|program| program.mode == Program_mode::shared) {
        return "programs share CPUs: the seats with a fixed number of cores do not fit".to_owned();
    }
    match (state.abstains, state.antt, state.antt_time_sharing) {
        (true, ..) => no_seats(state),
        (false, Some(antt), Some(sharing)) => {
            format!("ANTT {antt:.2} predicted, {sharing:.2} if all programs shared all CPUs")
        }
        (false, Some(antt), None) => format!("ANTT {antt:.2} predicted"),
        (false, None, _) if is_background_only(state) => {
            "only background work runs: no program needs a seat".to_owned()
        }
        (false, None, _) => "ANTT (mean normalised turnaround time): no prediction yet".to_owned(),
    }
}

/// Returns the headline of a plan that gives no seats. Seats of a fixed size, and the parts of
/// copies, are no part of the plan.
fn no_seats(state: &api::State) -> String {
    if state.programs.iter().any(is_fixed) {
        return "only programs with a fixed number of cores have seats: the others share the other \
                CPUs"
            .to_owned();
    }
    let divided = state.programs.iter().filter(|program| has_parts(program));
    let names: Vec<String> = divided
        .map(|program| format!("'{}'", shown(&program.name)))
        .collect();
    match names.is_empty() {
        true => "no program has a seat: all programs share all CPUs".to_owned(),
        false => format!(
            "no program has a seat of its own; the copies of {} have parts of the CPUs",
            text::list(&names)
        ),
    }
}

/// Returns whether a program gets a seat of a fixed number of cores. Pinned threads prevent a seat.
fn is_fixed(program: &api::Program) -> bool {
    program.cores.is_some() && program.pinned_to.is_none()
}

/// Returns whether copies of the program are confined to parts of the CPUs.
fn has_parts(program: &api::Program) -> bool {
    let mut copies = program.copies.iter().flat_map(|group| &group.copies);
    copies.any(|copy| copy.state == Copy_state::confined)
}

fn is_background_only(state: &api::State) -> bool {
    let mut programs = state.programs.iter();
    programs.all(|program| program.background.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::top::view::tests::{program, state};

    #[test]
    fn a_daemon_without_programs_has_one_headline() {
        for abstains in [false, true] {
            let mut state = state(Vec::new());
            (state.abstains, state.antt) = (abstains, None);
            assert_eq!(headline(&state), "the daemon manages no program");
        }
    }

    #[test]
    fn fixed_seats_that_overlap_have_a_headline_of_their_own() {
        let headline_with = |mode, pinned_to: Option<&str>| {
            let mut fixed = program(1, "solver", "", 1.0);
            (fixed.cores, fixed.mode) = (Some(2), mode);
            fixed.pinned_to = pinned_to.map(str::to_owned);
            let mut all = state(vec![fixed, program(2, "make", "", 1.0)]);
            all.abstains = true;
            headline(&all)
        };
        assert_eq!(
            headline_with(Program_mode::shared, None),
            "programs share CPUs: the seats with a fixed number of cores do not fit"
        );
        let apart = headline_with(Program_mode::seated, None);
        assert!(apart.contains("the others share the other CPUs"), "{apart}");
        let pinned = headline_with(Program_mode::shared, Some("0"));
        assert!(pinned.starts_with("no program has a seat"), "{pinned}");
    }

    #[test]
    fn confined_copies_have_parts_of_the_cpus() {
        let copy = |state| api::Copy {
            pid: 8,
            cpus: "0".to_owned(),
            threads: 1,
            state,
        };
        let group = |state| api::CopyGroup {
            launcher: 7,
            program: "cc1".to_owned(),
            forked: false,
            narrows_launcher: false,
            copies: vec![copy(state)],
            remedy: None,
        };
        let mut make = program(1, "make", "", 1.0);
        make.copies = vec![group(Copy_state::waiting)];
        let mut all = state(vec![make.clone(), program(2, "solver", "", 1.0)]);
        all.abstains = true;
        assert_eq!(
            headline(&all),
            "no program has a seat: all programs share all CPUs"
        );
        all.programs[0].copies = vec![group(Copy_state::confined)];
        assert_eq!(
            headline(&all),
            "no program has a seat of its own; the copies of 'make' have parts of the CPUs"
        );
    }
}
