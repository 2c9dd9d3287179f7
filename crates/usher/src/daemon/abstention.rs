// SPDX-License-Identifier: GPL-2.0-only
//! Formats the reason why programs have no seat, with a remedy, for `usher status` and `usher
//! explain`.
//!
//! The policy states the cause in its plan ([`Abstention`]). The text is made at each request from
//! the plan and the state of the programs at that time, so that a reason never outlives its cause:
//! if a program has begun to report progress since the plan was made, the text states this.

use usher_host::engine::{ProgramStatus, Status};
use usher_model::{Abstention, ProgramId, Progress};

use super::refusal::to_int;
use crate::api::{self, Abstention_cause as Cause};

/// Maximum number of programs that a reason names.
const NAMES_MAX: usize = 3;

/// Returns the cause for which no program has a seat; `None` if seats are possible.
pub fn of_all(status: &Status) -> Option<api::Abstention> {
    if let Some(refusal) = &status.seating_forbidden {
        let (reason, remedy) = super::claim::reason_and_remedy(refusal);
        return Some(simple(Cause::forbidden, reason.to_owned(), remedy));
    }
    let foreground = status.programs.iter().any(|p| p.background.is_none());
    if !foreground || !status.plan.abstains {
        return None;
    }
    Some(match &status.plan.abstention {
        None => of_policy(&status.policy),
        Some(Abstention::Unmeasured(ids)) => unmeasured(&known(status, ids)),
        Some(Abstention::FailedActions(id)) => failed(&known(status, &[*id])),
        Some(Abstention::Rejected(error)) => simple(
            Cause::planner,
            error.clone(),
            Some("run fewer of these programs at a time"),
        ),
        Some(Abstention::Unrestricted) => unrestricted(status),
        Some(Abstention::SmallGain {
            antt_seats,
            antt_sharing,
            required,
        }) => small_gain(*antt_seats, *antt_sharing, *required),
        Some(Abstention::Compared) => simple(
            Cause::gain,
            "Usher tried seats and sharing all CPUs, and seats were no better".to_owned(),
            None,
        ),
        Some(Abstention::Measuring) => simple(
            Cause::measuring,
            "Usher measures the progress of the programs without seats for a moment".to_owned(),
            None,
        ),
    })
}

/// Returns the cause for which this program has no seat.
pub fn of_program(program: &ProgramStatus, status: &Status) -> Option<api::Abstention> {
    if program.background.is_some() || program.mode.is_none() {
        return None;
    }
    let has_fixed_seat = program.cores.is_some() && status.seating_forbidden.is_none();
    match &program.pinned_to {
        // The plan has no reason for a fixed seat (`fixed_seats`).
        None if has_fixed_seat => None,
        Some(cpus) => Some(api::Abstention {
            cause: Cause::pinned,
            reason: format!("the program pinned threads to CPUs {cpus}"),
            remedy: Some(
                "start the program without pinning (taskset, numactl, OMP_PROC_BIND, an option \
                 of MPI)"
                    .to_owned(),
            ),
            programs: vec![to_int(program.id.0)],
        }),
        None => of_all(status),
    }
}

fn simple(cause: Cause, reason: String, remedy: Option<&str>) -> api::Abstention {
    api::Abstention {
        cause,
        reason,
        remedy: remedy.map(str::to_owned),
        programs: Vec::new(),
    }
}

fn of_policy(policy: &str) -> api::Abstention {
    simple(
        Cause::policy,
        format!("the policy {policy} assigns no CPUs to these programs"),
        Some("restart the daemon with '--policy usher'"),
    )
}

fn unrestricted(status: &Status) -> api::Abstention {
    let mut foreground = status.programs.iter().filter(|p| p.background.is_none());
    let reason = match (foreground.next(), foreground.next()) {
        (Some(only), None) => format!(
            "'{}' is the only program, so it may use all CPUs",
            only.name
        ),
        _ => "the best plan gives all CPUs to every program".to_owned(),
    };
    simple(Cause::unrestricted, reason, None)
}

fn small_gain(antt_seats: f64, antt_sharing: f64, required: f64) -> api::Abstention {
    let gain = 100.0 * (1.0 - antt_seats / antt_sharing);
    let reason = match gain > 0.0 {
        true => format!(
            "seats would gain {gain:.0} %, and at least {:.0} % are required (ANTT \
             {antt_seats:.2} with seats, {antt_sharing:.2} if all share all CPUs)",
            // The margin increases the time with seats; `gain` is a part of the time without them.
            100.0 * required / (1.0 + required)
        ),
        false => format!(
            "seats would gain nothing (ANTT {antt_seats:.2} with seats, {antt_sharing:.2} if all \
             share all CPUs)"
        ),
    };
    simple(Cause::gain, reason, None)
}

fn failed(programs: &[&ProgramStatus]) -> api::Abstention {
    api::Abstention {
        cause: Cause::failures,
        reason: format!("assigning CPUs to {} has failed too often", names(programs)),
        remedy: Some(
            "remove the cause in the warnings of 'usher status'; Usher tries again after 60 s"
                .to_owned(),
        ),
        programs: ids(programs),
    }
}

/// Describes programs without a profile and without sufficient progress at the time of the plan.
fn unmeasured(programs: &[&ProgramStatus]) -> api::Abstention {
    let reports = |p: &ProgramStatus| p.progress.as_ref().is_some_and(Progress::may_plan);
    let (now, lacking): (Vec<_>, Vec<_>) = programs.iter().copied().partition(|p| reports(p));
    if lacking.is_empty() {
        return api::Abstention {
            cause: Cause::measuring,
            reason: format!(
                "the progress of {} has not been measured on a seat yet",
                names(&now)
            ),
            remedy: (!now.is_empty()).then(|| "wait for the measurement".to_owned()),
            programs: ids(&now),
        };
    }
    let has = if lacking.len() == 1 { "has" } else { "have" };
    let lacks_progress = |p: &&ProgramStatus| p.progress.is_none();
    let reason = match lacking.iter().all(lacks_progress) {
        true => format!(
            "{} {has} no profile and no measured progress",
            names(&lacking)
        ),
        false => format!(
            "{} {has} no profile, and the measured CPU time does not show progress",
            names(&lacking)
        ),
    };
    api::Abstention {
        cause: Cause::progress,
        reason,
        remedy: remedy_without_profile(&lacking),
        programs: ids(&lacking),
    }
}

/// Returns the remedy for programs without a profile, for the first program that can have one, or
/// else for programs that ran already when they were attached. `None` if all programs are launchers:
/// the time of a launcher depends on its copies, which have CPUs of their own already.
fn remedy_without_profile(programs: &[&ProgramStatus]) -> Option<String> {
    let mut single = programs.iter().filter(|p| p.copies.is_empty()).peekable();
    single.peek()?;
    let launched = single.find(|p| !p.was_running);
    Some(match launched {
        Some(program) => profile(program),
        // 'usher profile' cannot measure a running program, and cannot repeat a service.
        None => "restart the program with a fixed seat ('usher run --cores N'), or set 'cores' in \
                 a rule of the configuration file"
            .to_owned(),
    })
}

/// Returns the advice to measure a program, which must end by itself for this, or to start it with
/// a fixed seat.
fn profile(program: &ProgramStatus) -> String {
    let mut words = program.command.split_whitespace();
    let first = words.next().unwrap_or(&program.name);
    // Every user may see the reason, so it does not contain the directory of the program.
    let first = first.rsplit('/').next().unwrap_or(first);
    let rest = if words.next().is_some() { " …" } else { "" };
    format!(
        "run 'usher profile -- {first}{rest}' once if the program ends by itself, else start it \
         with a fixed seat ('usher run --cores N')"
    )
}

fn known<'a>(status: &'a Status, ids: &[ProgramId]) -> Vec<&'a ProgramStatus> {
    let found = status.programs.iter().filter(|p| ids.contains(&p.id));
    found.collect()
}

fn ids(programs: &[&ProgramStatus]) -> Vec<i64> {
    programs.iter().map(|p| to_int(p.id.0)).collect()
}

/// Formats "'a', 'b' (3 programs), 'c' and 2 more": each name once, with the number of its programs.
fn names(programs: &[&ProgramStatus]) -> String {
    let mut groups: Vec<(&str, usize)> = Vec::new();
    for program in programs {
        match groups.iter_mut().find(|(name, _)| *name == program.name) {
            Some((_, count)) => *count += 1,
            None => groups.push((&program.name, 1)),
        }
    }
    groups.truncate(NAMES_MAX);
    let named = groups.iter().map(|(name, count)| match count {
        1 => format!("'{name}'"),
        _ => format!("'{name}' ({count} programs)"),
    });
    let named: Vec<String> = named.collect();
    let count: usize = groups.iter().map(|(_, count)| count).sum();
    match (named.as_slice(), programs.len() - count) {
        ([], _) => "a program".to_owned(),
        ([only], 0) => only.clone(),
        ([first @ .., last], 0) => format!("{} and {last}", first.join(", ")),
        (all, more) => format!("{} and {more} more", all.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use usher_model::{CpuSet, ProgressSource, SeatMode};
    use usher_policy::copies::GroupReport;
    use usher_topology::Source;

    use super::super::explain::samples::{program, status};
    use super::*;

    fn shared(id: u64, name: &str, progress: Option<Progress>) -> ProgramStatus {
        ProgramStatus {
            progress,
            mode: Some(SeatMode::Shared),
            command: format!("/usr/bin/{name} -k file"),
            ..program(id, name, &[])
        }
    }

    fn abstaining(programs: Vec<ProgramStatus>, cause: Option<Abstention>) -> Status {
        let machine = usher_topology::load(Source::parse("core:2 pu:1").unwrap()).unwrap();
        let mut status = status(programs, &machine);
        status.plan.abstains = true;
        status.plan.abstention = cause;
        status
    }

    fn measured(source: ProgressSource, confidence: f64) -> Option<Progress> {
        Some(Progress {
            total: 1.0,
            source,
            confidence,
        })
    }

    #[test]
    fn names_each_program_without_progress_and_the_remedy() {
        let cause = Abstention::Unmeasured(vec![ProgramId(1), ProgramId(2)]);
        let cpu_time = measured(ProgressSource::CpuTime, 0.1);
        let programs = vec![shared(1, "zip", cpu_time), shared(2, "tar", cpu_time)];
        let found = of_all(&abstaining(programs, Some(cause))).unwrap();
        assert_eq!(
            found.reason,
            "'zip' and 'tar' have no profile, and the measured CPU time does not show progress"
        );
        let remedy = found.remedy.unwrap();
        assert!(
            remedy.starts_with("run 'usher profile -- zip …' once if the program ends by itself"),
            "{remedy}"
        );
        assert_eq!((found.cause, found.programs), (Cause::progress, vec![1, 2]));
    }

    #[test]
    fn a_profile_is_no_remedy_for_a_program_that_ran_already() {
        let attached = |id, name| ProgramStatus {
            was_running: true,
            ..shared(id, name, None)
        };
        let remedy = |programs: Vec<ProgramStatus>| {
            let ids = programs.iter().map(|program| program.id).collect();
            let found = of_all(&abstaining(programs, Some(Abstention::Unmeasured(ids))));
            found.unwrap().remedy.unwrap()
        };
        let service = remedy(vec![attached(1, "nginx")]);
        assert!(service.starts_with("restart the program with a fixed seat"));
        assert!(!service.contains("usher profile"), "{service}");
        let both = remedy(vec![attached(1, "nginx"), shared(2, "zip", None)]);
        assert!(
            both.starts_with("run 'usher profile -- zip …' once"),
            "{both}"
        );
    }

    #[test]
    fn a_profile_of_a_launcher_with_copies_is_no_remedy() {
        let cause = Abstention::Unmeasured(vec![ProgramId(1)]);
        let mut make = shared(1, "make", None);
        make.copies = vec![GroupReport {
            launcher: 1,
            name: "cc".to_owned(),
            forked: false,
            narrows_launcher: false,
            copies: Vec::new(),
        }];
        let found = of_all(&abstaining(vec![make], Some(cause))).unwrap();
        assert_eq!(found.remedy, None);
    }

    #[test]
    fn a_program_that_reports_progress_now_is_not_blamed() {
        let cause = || Some(Abstention::Unmeasured(vec![ProgramId(1), ProgramId(2)]));
        let beats = measured(ProgressSource::Heartbeat, 1.0);
        let both = vec![shared(1, "a", beats), shared(2, "b", beats)];
        let found = of_all(&abstaining(both, cause())).unwrap();
        assert_eq!(found.cause, Cause::measuring);
        assert!(!found.reason.contains("CPU time"), "{}", found.reason);
        let one = vec![shared(1, "a", beats), shared(2, "b", None)];
        let found = of_all(&abstaining(one, cause())).unwrap();
        assert_eq!(found.reason, "'b' has no profile and no measured progress");
        assert_eq!(found.programs, [2]);
    }

    #[test]
    fn every_cause_has_a_reason_and_a_possible_cure_has_a_remedy() {
        let gain = Abstention::SmallGain {
            antt_seats: 1.9,
            antt_sharing: 2.0,
            required: 0.13,
        };
        let causes = [
            (None, true),
            (Some(Abstention::FailedActions(ProgramId(1))), true),
            (Some(Abstention::Rejected("too many".to_owned())), true),
            (Some(Abstention::Unrestricted), false),
            (Some(gain), false),
            (Some(Abstention::Compared), false),
            (Some(Abstention::Measuring), false),
        ];
        for (cause, curable) in causes {
            let programs = vec![shared(1, "a", None), shared(2, "b", None)];
            let found = of_all(&abstaining(programs, cause.clone())).unwrap();
            assert!(!found.reason.is_empty(), "{cause:?}");
            assert_eq!(found.remedy.is_some(), curable, "{cause:?}");
        }
    }

    #[test]
    fn seats_pins_and_background_work_have_causes_of_their_own() {
        let pinned = ProgramStatus {
            pinned_to: Some(CpuSet::range(0, 0)),
            ..shared(1, "a", None)
        };
        let mut seated = abstaining(vec![pinned.clone()], None);
        seated.plan.abstains = false;
        assert!(of_all(&seated).is_none());
        assert_eq!(of_program(&pinned, &seated).unwrap().cause, Cause::pinned);
        assert!(of_program(&shared(2, "b", None), &seated).is_none());
        assert!(of_all(&abstaining(Vec::new(), None)).is_none());
    }

    #[test]
    fn long_lists_of_names_are_shortened() {
        let shown = |given: &[&str]| {
            let programs = given.iter().zip(1..);
            let programs = programs.map(|(name, id)| shared(id, name, None));
            let programs: Vec<_> = programs.collect();
            names(&programs.iter().collect::<Vec<_>>())
        };
        assert_eq!(
            shown(&["a", "b", "c", "d", "e"]),
            "'a', 'b', 'c' and 2 more"
        );
        // A name that several programs have appears once.
        assert_eq!(shown(&["a", "a"]), "'a' (2 programs)");
        assert_eq!(shown(&["a", "b", "a"]), "'a' (2 programs) and 'b'");
        assert_eq!(
            shown(&["a", "b", "c", "c", "d", "d"]),
            "'a', 'b', 'c' (2 programs) and 2 more"
        );
    }
}
