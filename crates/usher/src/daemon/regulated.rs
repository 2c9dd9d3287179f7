// SPDX-License-Identifier: GPL-2.0-only
//! Formats, for `usher explain`, why a background program runs or is stopped: the state in one
//! sentence, and the measured values that caused the last stop beside their thresholds.
//!
//! The share of time in which the program was allowed to run refers to the last 10 s
//! ([`SHARE_SECONDS`]), or to the whole time of a younger program.

use usher_host::engine::{BackgroundStatus, ProgramStatus};
use usher_model::{Contention, Regulation, Resource};
use usher_report::text;

/// Length of the period to which the reported share of time refers, in seconds.
const SHARE_SECONDS: f64 = 10.0;

/// Describes whether the program runs, since when, and why.
pub fn place(program: &ProgramStatus, status: &BackgroundStatus) -> String {
    let policy = status.regulation.name();
    let Some(state) = &status.state else {
        return format!(
            "the program is background work under the policy {policy}, and has just \
                        been admitted"
        );
    };
    let since = seconds(status.since_seconds);
    let now = match (program.frozen, &state.reason_text) {
        (true, Some(why)) => format!("it has been stopped for {since}, because {why}"),
        (true, None) => format!("it has been stopped for {since}"),
        (false, _) => format!("it has run for {since}"),
    };
    let of = match program.seconds < SHARE_SECONDS {
        true => "its run time".to_owned(),
        false => format!("the last {SHARE_SECONDS:.0} s"),
    };
    format!(
        "the program is background work under the policy {policy}: {now}; it was allowed to run \
         for {:.0} % of {of}{}, and uses {:.2} CPUs",
        state.share * 100.0,
        stops(state.stops),
        program.busy_cpus
    )
}

/// Describes the values that caused the last stop, and their thresholds.
pub fn known(status: &BackgroundStatus) -> String {
    let reason = status.state.as_ref().and_then(|one| one.reason.as_ref());
    let figures = match reason {
        Some(reason) => figures(status, reason),
        None => {
            "the program has not been stopped; foreground programs get CPUs before it".to_owned()
        }
    };
    match &status.user {
        Some(user) => format!("{figures}; the main foreground user was {user}"),
        None => figures,
    }
}

fn figures(status: &BackgroundStatus, reason: &Contention) -> String {
    let what = status.resource.as_deref().unwrap_or("a resource");
    let window = seconds(reason.window_ns as f64 * 1e-9);
    let used = |count: u64| amount(status.regulation, reason.resource, count);
    match status.regulation {
        // A stop because of a run-queue imbalance has no measured times: run queues are checked
        // much more often than waiting times.
        Regulation::Usher if reason.resource == Resource::Cpu && reason.background == 0 => {
            format!("last stopped for {what}, immediately: foreground threads waited for a CPU")
        }
        Regulation::Usher => {
            let foreground = used(reason.foreground);
            let background = match reason.resource {
                Resource::Link(_) => text::count(reason.background as usize, "packet"),
                _ => used(reason.background),
            };
            match reason.resource {
                Resource::Cpu => format!(
                    "last stopped for {what}: in {window}, foreground threads waited for CPUs \
                     for {foreground} in total, and background work used {background}"
                ),
                _ => format!(
                    "last stopped for {what}: in {window}, foreground work made {foreground} and \
                     background work {background}; background work continues after {} without \
                     foreground use",
                    seconds(reason.threshold * 1e-9)
                ),
            }
        }
        Regulation::Eii | Regulation::Ipd => {
            let all = (reason.background + reason.foreground).max(1);
            format!(
                "last stopped for {what}: in {window}, background work made {:.1} % of all use \
                 of that resource (background {}, foreground {}), less than the threshold of \
                 {:.0} %",
                reason.background as f64 / all as f64 * 100.0,
                used(reason.background),
                used(reason.foreground),
                reason.threshold * 100.0
            )
        }
    }
}

/// Formats an amount of a resource in its unit.
fn amount(regulation: Regulation, resource: Resource, count: u64) -> String {
    match (resource, regulation) {
        (Resource::Cpu, _) => seconds(count as f64 * 1e-9),
        (Resource::Disk(_), Regulation::Usher) if count == 1 => "a request".to_owned(),
        (Resource::Disk(_), Regulation::Usher) => format!("{count} requests"),
        (Resource::Disk(_), _) => text::count(count as usize, "sector"),
        (Resource::Link(_), Regulation::Usher) if count == 1 => "a call or packet".to_owned(),
        (Resource::Link(_), Regulation::Usher) => format!("{count} calls and packets"),
        (Resource::Link(_), _) => text::count(count as usize, "call"),
    }
}

/// Describes the number of stops; empty for none, which [`known`] states.
fn stops(count: u64) -> String {
    match count {
        0 => String::new(),
        1 => ", was stopped once".to_owned(),
        _ => format!(", was stopped {count} times"),
    }
}

/// Formats a time span with three digits: 12.3 ms, 4.56 s.
fn seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.1} s"),
        s => format!("{:.1} ms", s * 1e3),
    }
}

#[cfg(test)]
mod tests {
    use usher_model::{BackgroundState, DiskId, ProgramId};

    use super::super::explain::samples::program;
    use super::*;

    fn status(regulation: Regulation, reason: Option<Contention>) -> BackgroundStatus {
        BackgroundStatus {
            regulation,
            since_seconds: 0.25,
            resource: Some("disk vda".to_owned()),
            user: None,
            lacking: Vec::new(),
            state: Some(BackgroundState {
                program: ProgramId(1),
                regulation,
                running: reason.is_none(),
                since_ns: 0,
                reason_text: reason
                    .as_ref()
                    .map(|_| "foreground uses disk vda".to_owned()),
                reason,
                share: 0.5,
                stops: 3,
            }),
        }
    }

    #[test]
    fn explains_what_stopped_it_and_the_threshold() {
        let mut one = program(1, "backup", &[]);
        one.frozen = true;
        let resource = Resource::Disk(DiskId {
            major: 254,
            minor: 0,
        });
        let reason = Contention {
            resource,
            background: 80,
            foreground: 20,
            window_ns: 100_000_000,
            threshold: 1.0,
        };
        let eii = status(Regulation::Eii, Some(reason.clone()));
        assert_eq!(
            place(&one, &eii),
            "the program is background work under the policy eii: it has been stopped for 250.0 \
             ms, because foreground uses disk vda; it was allowed to run for 50 % of its run \
             time, was stopped 3 times, and uses 0.00 CPUs"
        );
        one.seconds = 60.0;
        assert!(place(&one, &eii).contains("for 50 % of the last 10 s, was"));
        assert_eq!(
            known(&eii),
            "last stopped for disk vda: in 100.0 ms, background work made 80.0 % of all use \
             of that resource (background 80 sectors, foreground 20 sectors), less than the threshold of 100 %"
        );
        let threshold = 20e6;
        let usher = status(
            Regulation::Usher,
            Some(Contention {
                threshold,
                ..reason
            }),
        );
        assert_eq!(
            known(&usher),
            "last stopped for disk vda: in 100.0 ms, foreground work made 20 requests and \
             background work 80 requests; background work continues after 20.0 ms without \
             foreground use"
        );
        let crowd = Contention {
            resource: Resource::Cpu,
            background: 0,
            foreground: 0,
            window_ns: 20_000_000,
            threshold: 0.0,
        };
        let crowd = status(Regulation::Usher, Some(crowd));
        assert!(known(&crowd).ends_with("immediately: foreground threads waited for a CPU"));
        let mut free = status(Regulation::Usher, None);
        assert!(known(&free).starts_with("the program has not been stopped"));
        free.state.as_mut().unwrap().stops = 0;
        let text = place(&one, &free);
        assert!(
            text.ends_with("of the last 10 s, and uses 0.00 CPUs"),
            "{text}"
        );
    }

    #[test]
    fn a_single_use_is_in_the_singular() {
        let link = Resource::Link(usher_model::LinkId(2));
        let shown = |regulation, resource| amount(regulation, resource, 1);
        assert_eq!(shown(Regulation::Eii, link), "1 call");
        assert_eq!(shown(Regulation::Usher, link), "a call or packet");
        let disk = Resource::Disk(DiskId { major: 1, minor: 0 });
        assert_eq!(shown(Regulation::Ipd, disk), "1 sector");
    }
}
