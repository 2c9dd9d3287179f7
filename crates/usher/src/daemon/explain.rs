// SPDX-License-Identifier: GPL-2.0-only
//! The reasons for the plan, for `usher explain`: the seat of each program, the effect of one core
//! more or less, and its scalability curve. The reply also contains the predicted ANTT of
//! alternatives: time sharing, equal shares, each program left out.
//!
//! 1. Select the programs by name or number, or all programs.
//! 2. Describe the seat, the known curve and the loans of each selected program, with its latest
//!    notes, at most four ([`NOTES_MAX`]).
//! 3. Compute the alternatives from the scalability curves of all foreground programs. If one of
//!    these curves is unknown, the alternatives have no ANTT.
//!
//! The planner runs once for each program left out, for two to eight foreground programs
//! (module `alternatives`). All other steps cost a pass over the programs, notes and loans per selected
//! program. A name or number without a program is an error.

mod place;

use usher_host::engine::{ProgramStatus, Status};
use usher_model::{NoteTopic, ProfileMatch, Topology};
use usher_report::text;

use self::place::{named, place};
use super::alternatives::alternatives;
use super::refusal::Refusal;
use super::{regulated, view};
use crate::{api, copies, output};

/// Number of latest notes about a program that are shown.
const NOTES_MAX: usize = 4;

/// Explains one program, by name or number, or all.
///
/// # Errors
/// No such program.
pub fn explain(
    status: &Status,
    topology: &Topology,
    wanted: Option<&str>,
) -> Result<api::Explain_Reply, Refusal> {
    let all = &status.programs;
    let meant: Vec<&ProgramStatus> = match wanted {
        Some(wanted) => {
            let mut named = output::named(all, |p| &p.name, wanted);
            let numbered = all.iter().find(|p| p.id.to_string() == wanted);
            let numbered = numbered.filter(|p| named.iter().all(|one| one.id != p.id));
            named.extend(numbered);
            named
        }
        None => all.iter().collect(),
    };
    if let (Some(wanted), true) = (wanted, meant.is_empty()) {
        return Err(Refusal::NoSuchProgram(wanted.to_owned()));
    }
    // CPUs may have gone offline. If no CPU is usable, there are no alternatives to compare.
    let usable = topology.restrict(&status.usable);
    let topology = usable.as_ref().unwrap_or(topology);
    let reasons = meant.into_iter().map(|p| reason(p, status, topology));
    Ok(api::Explain_Reply {
        reasons: reasons.collect(),
        alternatives: alternatives(status, topology),
        state: view::state(status, topology),
    })
}

fn reason(program: &ProgramStatus, status: &Status, topology: &Topology) -> api::Reason {
    let own_notes = status.notes.iter().rev();
    let own_notes = own_notes
        .filter(|note| note.note.program == Some(program.id))
        // The description of the seat states its present size.
        .filter(|note| note.note.topic != NoteTopic::FixedSeat)
        .take(NOTES_MAX);
    let mut notes: Vec<String> = own_notes.map(|note| note.note.text.clone()).collect();
    notes.reverse();
    notes.dedup();
    notes.extend(copies::sentences(&view::program(program, status)));
    notes.extend(loans(program, status));
    let background = program.background.iter();
    notes.extend(background.flat_map(|background| background.lacking.clone()));
    let points = program
        .profile
        .as_ref()
        .map_or(&[][..], |curve| curve.points());
    api::Reason {
        program: view::program(program, status),
        place: place(program, status, topology),
        known: match &program.background {
            Some(background) => regulated::known(background),
            None => known(program),
        },
        curve: points
            .iter()
            .map(|point| api::CurvePoint {
                cores: point.cores,
                rate: point.rate,
                relative_error: point.relative_error,
            })
            .collect(),
        notes,
    }
}

/// Describes the known scalability of the program, with its source and its confidence.
fn known(program: &ProgramStatus) -> String {
    let curve = match &program.profile {
        Some(curve) => format!(
            "the curve of the program is known from earlier runs{} ({})",
            match program.profile_match {
                ProfileMatch::Exact => "",
                ProfileMatch::OtherArguments => " with other arguments, so it is less certain",
            },
            text::count(curve.points().len(), "point")
        ),
        None => "the program has no stored profile".to_owned(),
    };
    let progress = match &program.progress {
        Some(p) => format!(
            "its progress is measured by {} (confidence {:.0} %)",
            p.source,
            p.confidence * 100.0
        ),
        None => "its progress is unknown".to_owned(),
    };
    let waits = match (program.spinners, program.active_wait) {
        (0, Some(true)) => "; its OpenMP or MPI runtime adapted to the number of CPUs at its \
                            start, so Usher does not reduce its seat"
            .to_owned(),
        (0, _) => String::new(),
        (n, _) => {
            format!("; {n} of its threads busy-wait, so the program gets at least {n} cores")
        }
    };
    format!("{curve}; {progress}{waits}")
}

/// Describes what the program lends and borrows, in sentences.
fn loans<'a>(program: &'a ProgramStatus, status: &'a Status) -> impl Iterator<Item = String> + 'a {
    let name = |id| {
        let owner = status.programs.iter().find(|p| p.id == id);
        owner.map_or_else(|| format!("program {id}"), |p| p.name.clone())
    };
    status.plan.loans.iter().filter_map(move |loan| {
        let cpus = named(&loan.cpus);
        match loan.owner {
            Some(owner) if owner == program.id => Some(format!(
                "the program lends {cpus} to {} until it needs them",
                name(loan.borrower)
            )),
            Some(owner) if loan.borrower == program.id => {
                Some(format!("the program borrows {cpus} from {}", name(owner)))
            }
            None if loan.borrower == program.id => {
                Some(format!("the program uses {cpus}, which no seat contains"))
            }
            _ => None,
        }
    })
}

/// States of an engine for tests.
#[cfg(test)]
pub mod samples {
    use usher_act::{ActDescription, CgroupPlacement, YieldMethod};
    use usher_model::{Curve, Plan, ProgramId};

    use super::*;

    pub fn program(id: u64, name: &str, rates: &[(u32, f64)]) -> ProgramStatus {
        ProgramStatus {
            id: ProgramId(id),
            name: name.to_owned(),
            pid: 1,
            uid: 0,
            job: None,
            command: String::new(),
            weight: 1.0,
            cores: None,
            was_running: false,
            seconds: 1.0,
            cpus: None,
            soft: false,
            borrowed: Default::default(),
            lent: Default::default(),
            domains: Vec::new(),
            mode: None,
            frozen: false,
            stopped_by_user: false,
            ntt: None,
            threads: 1,
            spinners: 0,
            active_wait: None,
            cpu_seconds: 0.0,
            busy_cpus: 0.0,
            progress: None,
            progress_per_second: None,
            profile: Curve::from_rates(&rates.iter().copied().collect()).ok(),
            profile_match: ProfileMatch::Exact,
            bound_to: None,
            pinned_to: None,
            cpu_quota: None,
            background: None,
            copies: Vec::new(),
            unrecognised_workers: 0,
            hints: None,
        }
    }

    pub fn status(programs: Vec<ProgramStatus>, topology: &Topology) -> Status {
        Status {
            policy: "usher".to_owned(),
            acting: ActDescription {
                placement: CgroupPlacement::Descent,
                yielding: YieldMethod::Autogroup,
                reasons: Vec::new(),
            },
            kept_by_scheduler: false,
            seating_forbidden: None,
            keeper_pid: None,
            machine: "m".to_owned(),
            usable: topology.all_cpus(),
            uptime_seconds: 1.0,
            decisions: 1,
            failed_actions: 0,
            loop_cpu_seconds: 0.0,
            plan: Plan::default(),
            programs,
            notes: Vec::new(),
            warnings: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use usher_host::engine::{BackgroundStatus, TimedNote};
    use usher_model::{CpuSet, Note, Regulation, SeatMode};
    use usher_topology::Source;

    use super::samples::{program, status};
    use super::*;

    #[test]
    fn explains_the_cost_of_alternatives() {
        let source = Source::parse("package:1 core:4 pu:1").unwrap();
        let machine = usher_topology::load(source).unwrap();
        // Half of the machine slows a perfectly scaling program by a factor of two, and a program
        // that does not scale not at all.
        let programs = vec![
            program(1, "scales", &[(1, 1.0), (4, 4.0)]),
            program(2, "serial", &[(1, 1.0), (4, 1.0)]),
        ];
        let answer = explain(&status(programs, &machine), &machine, None).unwrap();
        let antt = |name: &str| {
            let found = answer.alternatives.iter().find(|a| a.name == name);
            found.and_then(|a| a.antt).unwrap()
        };
        assert_eq!(antt("equal"), 1.5);
        assert_eq!(antt("without scales"), 1.0);
        assert_eq!(antt("without serial"), 1.0);
        assert!(antt("time sharing") >= 1.0);
        assert_eq!(answer.reasons.len(), 2);
    }

    #[test]
    fn a_seat_kept_by_the_scheduler_is_shown() {
        let machine = usher_topology::load(Source::parse("core:4 pu:1").unwrap()).unwrap();
        let actual = |soft| {
            let one = ProgramStatus {
                cpus: Some(usher_model::CpuSet::range(0, 1)),
                mode: Some(SeatMode::Seated),
                soft,
                ..program(1, "a", &[])
            };
            place(&one, &status(vec![], &machine), &machine)
        };
        assert_eq!(
            actual(true),
            "the program has a soft seat on CPUs 0-1 (2.0 cores)"
        );
        assert_eq!(
            actual(false),
            "the program has a seat on CPUs 0-1 (2.0 cores)"
        );
        let single = ProgramStatus {
            cpus: Some(CpuSet::range(0, 0)),
            mode: Some(SeatMode::Seated),
            ..program(1, "a", &[])
        };
        assert_eq!(
            place(&single, &status(vec![], &machine), &machine),
            "the program has a seat on CPU 0 (1.0 cores)"
        );
    }

    #[test]
    fn a_fixed_seat_that_is_shared_has_a_reason_and_a_remedy() {
        let machine = usher_topology::load(Source::parse("core:2 pu:1").unwrap()).unwrap();
        let text = |cores: [Option<u32>; 2]| {
            let one = |(id, cores)| ProgramStatus {
                mode: Some(SeatMode::Shared),
                cores,
                ..program(id, "a", &[])
            };
            let programs: Vec<_> = (1..).zip(cores).map(one).collect();
            let mut status = status(programs.clone(), &machine);
            status.plan.seats = vec![usher_model::Seat {
                program: programs[0].id,
                cpus: CpuSet::range(0, 1),
                domains: Vec::new(),
                mode: SeatMode::Shared,
                ntt: None,
            }];
            place(&programs[0], &status, &machine)
        };
        assert_eq!(
            text([Some(2), Some(1)]),
            "the seat of the program is fixed at 2 cores by --cores or a rule, and the program \
             shares CPUs 0-1 with other programs, because the fixed seats together need 3 cores, \
             and programs may use 2 cores: give the programs fewer cores, or run fewer programs at \
             a time"
        );
        let alone = text([Some(2), None]);
        assert!(
            alone.contains("leave no core for the other programs"),
            "{alone}"
        );
        assert!(text([None, None]).contains("the program has no seat"));
        let large = text([Some(99), None]);
        assert!(
            large
                .contains("is fixed at 2 cores (99 requested, but the program may use no more) by"),
            "{large}"
        );
    }

    #[test]
    fn a_fixed_seat_has_its_actual_size() {
        let machine = usher_topology::load(Source::parse("core:2 pu:1").unwrap()).unwrap();
        let seated = ProgramStatus {
            mode: Some(SeatMode::Seated),
            cores: Some(99),
            ..program(1, "a", &[])
        };
        let mut status = status(vec![seated.clone()], &machine);
        status.plan.seats = vec![usher_model::Seat {
            program: seated.id,
            cpus: CpuSet::range(0, 1),
            domains: Vec::new(),
            mode: SeatMode::Seated,
            ntt: None,
        }];
        let text = place(&seated, &status, &machine);
        let expected = "(2.0 cores), fixed at 2 cores (99 requested, but the program may use no \
                        more) by --cores or a rule";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn the_size_of_a_fixed_seat_is_stated_once() {
        let machine = usher_topology::load(Source::parse("core:4 pu:1").unwrap()).unwrap();
        let one = ProgramStatus {
            mode: Some(SeatMode::Seated),
            cpus: Some(CpuSet::range(0, 1)),
            cores: Some(2),
            ..program(1, "a", &[])
        };
        let mut status = status(vec![one], &machine);
        status.plan.seats = vec![usher_model::Seat {
            program: status.programs[0].id,
            cpus: CpuSet::range(0, 1),
            domains: Vec::new(),
            mode: SeatMode::Seated,
            ntt: None,
        }];
        // The first note is about a former seat.
        let notes = [
            "the seat is fixed at 3 cores by --cores or a rule",
            "the seat is fixed at 2 cores by --cores or a rule",
            "the threads use all cores",
        ];
        status.notes = notes.map(|text| timed_note(&status, text)).to_vec();
        for about_seat in &mut status.notes[..2] {
            about_seat.note.topic = NoteTopic::FixedSeat;
        }
        let stated = |status: &Status| {
            let reason = explain(status, &machine, None).unwrap().reasons.remove(0);
            assert_eq!(reason.notes, ["the threads use all cores"]);
            reason.place
        };
        let fixed = "fixed at 2 cores by --cores or a rule";
        let seated = stated(&status);
        assert!(seated.ends_with(fixed), "{seated}");
        status.programs[0].frozen = true;
        let stopped = stated(&status);
        assert!(stopped.ends_with(fixed), "{stopped}");
    }

    fn timed_note(status: &Status, text: &str) -> TimedNote {
        TimedNote {
            at_seconds: 1.0,
            note: Note::new(Some(status.programs[0].id), text.to_owned()),
            lasting: false,
        }
    }

    #[test]
    fn each_kept_priority_has_a_line_of_its_own() {
        let machine = usher_topology::load(Source::parse("core:2 pu:1").unwrap()).unwrap();
        let gaps = ["process 7 keeps its nice value", "cpu.idle is not used"];
        let mut one = program(1, "backup", &[]);
        one.background = Some(BackgroundStatus {
            regulation: Regulation::Usher,
            since_seconds: 1.0,
            resource: None,
            user: None,
            lacking: gaps.map(str::to_owned).to_vec(),
            state: None,
        });
        let answer = explain(&status(vec![one], &machine), &machine, None).unwrap();
        assert_eq!(answer.reasons[0].notes, gaps);
    }

    #[test]
    fn messages_contain_no_error_numbers() {
        let machine = usher_topology::load(Source::parse("core:2 pu:1").unwrap()).unwrap();
        let mut state = status(Vec::new(), &machine);
        let denied = format!(
            "loading: {}",
            std::io::Error::from_raw_os_error(libc::EPERM)
        );
        state.warnings = vec![denied.clone()];
        state.acting.reasons = vec![denied];
        let shown = view::state(&state, &machine);
        let expected = ["loading: Operation not permitted"];
        assert_eq!(shown.warnings, expected);
        assert_eq!(shown.placing.reasons, expected);
    }

    #[test]
    fn time_sharing_is_not_the_present_state_beside_a_fixed_seat() {
        let machine = usher_topology::load(Source::parse("core:2 pu:1").unwrap()).unwrap();
        let sharing = |cores, forbidden: Option<&str>| {
            let fixed = ProgramStatus {
                cores,
                ..program(1, "a", &[])
            };
            let mut status = status(vec![fixed, program(2, "b", &[])], &machine);
            status.plan.abstains = true;
            status.seating_forbidden = forbidden.map(str::to_owned);
            let alternatives = explain(&status, &machine, None).unwrap().alternatives;
            let mut alternatives = alternatives.into_iter();
            alternatives.find(|a| a.name == "time sharing").unwrap().why
        };
        assert_eq!(sharing(Some(1), None), "all programs share all CPUs");
        let present = "the present state: ";
        assert!(sharing(None, None).starts_with(present));
        assert!(
            sharing(Some(1), Some("x")).starts_with(present),
            "no seats are set"
        );
    }

    #[test]
    fn distinguishes_programs_of_one_name() {
        let machine = usher_topology::load(Source::parse("core:2 pu:1").unwrap()).unwrap();
        let programs = vec![
            program(1, "py", &[]),
            program(2, "py", &[]),
            program(3, "sort", &[]),
        ];
        let answer = explain(&status(programs, &machine), &machine, None).unwrap();
        let names = answer.alternatives.iter().map(|a| a.name.as_str());
        let without: Vec<&str> = names.filter(|name| name.starts_with("without")).collect();
        assert_eq!(
            without,
            [
                "without py (program 1)",
                "without py (program 2)",
                "without sort"
            ]
        );
    }

    #[test]
    fn omits_comparisons_without_a_curve_and_finds_programs_by_name_and_number() {
        let machine = usher_topology::load(Source::parse("core:2 pu:1").unwrap()).unwrap();
        let programs = vec![program(1, "a", &[]), program(2, "b", &[(1, 1.0), (2, 2.0)])];
        let status = status(programs, &machine);
        let answer = explain(&status, &machine, Some("b")).unwrap();
        let equal = answer.alternatives.iter().find(|a| a.name == "equal");
        assert_eq!(equal.unwrap().antt, None);
        assert_eq!(answer.reasons[0].program.id, 2);
        assert_eq!(answer.reasons[0].curve.len(), 2);
        assert_eq!(
            explain(&status, &machine, Some("1")).unwrap().reasons.len(),
            1
        );
        let unknown = explain(&status, &machine, Some("c"));
        assert!(matches!(unknown, Err(Refusal::NoSuchProgram(name)) if name == "c"));
    }
}
