// SPDX-License-Identifier: GPL-2.0-only
//! Logs the events of managed programs: arrival, seat, loans, stops, and departure.
//!
//! The control loop sends each change of a placement through a bounded channel. A thread compares
//! the change with the previous placement of the program and logs the difference, so that logging
//! never delays the loop. While the channel is full, changes are lost; the next change of the
//! program shows its present state.
//!
//! Fields of the journal: `USHER_EVENT` (the name of the event), `USHER_PROGRAM` (the program's
//! number), `USHER_PROGRAM_NAME` and `USHER_CPUS`. `docs/logging.md` lists the events.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use log::{Level, Record};
use usher_host::engine::{LogChange, LogEntry, ProgramPlacement};
use usher_model::{CpuSet, ProgramId, SeatMode};
use usher_report::text;

/// Maximum number of changes that wait to be logged.
const CHANGES_MAX: usize = 1024;

/// An event of a program or of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Event {
    kind: &'static str,
    level: Level,
    program: Option<ProgramId>,
    cpus: Option<CpuSet>,
    text: String,
}

/// Starts the thread; returns the channel for the control loop.
///
/// # Errors
/// The thread cannot be started.
pub fn start() -> io::Result<SyncSender<LogEntry>> {
    let (sender, receiver) = sync_channel(CHANGES_MAX);
    let thread = std::thread::Builder::new().name("events".to_owned());
    thread.spawn(move || follow(&receiver))?;
    Ok(sender)
}

fn follow(changes: &Receiver<LogEntry>) {
    let mut programs = LoggedPrograms::default();
    for entry in changes {
        let departed = match entry.change {
            LogChange::Departed { program } => Some(program),
            _ => None,
        };
        for event in programs.events(entry.change) {
            let name = event.program.and_then(|id| programs.0.get(&id));
            log(&event, name.map(|known| known.name.as_str()));
        }
        departed.map(|program| programs.0.remove(&program));
    }
}

/// Logs an event with its fields.
fn log(event: &Event, name: Option<&str>) {
    let id = event.program.map(|id| id.0.to_string());
    let cpus = event.cpus.as_ref().map(CpuSet::to_string);
    let fields = [
        ("USHER_EVENT", Some(event.kind)),
        ("USHER_PROGRAM", id.as_deref()),
        ("USHER_PROGRAM_NAME", name),
        ("USHER_CPUS", cpus.as_deref()),
    ];
    let fields = fields.into_iter();
    let fields: Vec<(&str, &str)> = fields
        .filter_map(|(key, value)| Some((key, value?)))
        .collect();
    if event.level > log::max_level() {
        return;
    }
    log::logger().log(
        &Record::builder()
            .level(event.level)
            .target("usher")
            .args(format_args!("{}", event.text))
            .key_values(&fields.as_slice())
            .build(),
    );
}

/// Logs that a rule applies to a process that arrives.
pub fn log_rule(pid: i32, what: &str) {
    let text = format!("process {pid}: {what}");
    log(&Event::of_daemon("rule", Level::Info, text), None);
}

/// Logs that the daemon continues the work of a daemon that has died.
pub fn log_restart() {
    let text = "the previous daemon has died; this daemon takes its place".to_owned();
    log(&Event::of_daemon("restart", Level::Warn, text), None);
}

/// Logs a start or an end of the sched_ext scheduler.
pub fn log_scheduler(kind: &'static str, level: Level, text: String) {
    log(&Event::of_daemon(kind, level, text), None);
}

/// Logs that all changes of the daemon are undone at its end.
pub fn log_undo() {
    let text = "all changes are undone; released programs keep running".to_owned();
    log(&Event::of_daemon("undo", Level::Info, text), None);
}

impl Event {
    fn of_daemon(kind: &'static str, level: Level, text: String) -> Self {
        Self {
            kind,
            level,
            program: None,
            cpus: None,
            text,
        }
    }
}

/// A managed program.
#[derive(Debug, Default)]
struct LoggedProgram {
    name: String,
    placement: Option<ProgramPlacement>,
}

/// The managed programs by number.
#[derive(Debug, Default)]
struct LoggedPrograms(BTreeMap<ProgramId, LoggedProgram>);

impl LoggedPrograms {
    /// Returns the events of a change.
    fn events(&mut self, change: LogChange) -> Vec<Event> {
        match change {
            LogChange::Arrived { program, name } => {
                let placement = None;
                self.0.insert(program, LoggedProgram { name, placement });
                vec![self.event("arrival", Level::Info, program, None, "has arrived")]
            }
            LogChange::Departed { program } => {
                vec![self.event(
                    "departure",
                    Level::Info,
                    program,
                    None,
                    "has ended or was released",
                )]
            }
            LogChange::Placed { program, placement } => self.placed(program, placement),
            LogChange::Note { program, text } => vec![Event {
                program,
                ..Event::of_daemon("note", Level::Debug, text)
            }],
            LogChange::Planned { abstains } => {
                let text = match abstains {
                    true => "the plan leaves all programs to the kernel",
                    false => "the plan gives seats",
                };
                vec![Event::of_daemon("plan", Level::Debug, text.to_owned())]
            }
            LogChange::StoreWarning { text } => {
                vec![Event::of_daemon("store", Level::Warn, text)]
            }
            LogChange::Undone {
                programs,
                instances,
            } => {
                let (programs, instances) = (
                    text::count(programs, "program"),
                    text::count(instances, "dead daemon"),
                );
                let text = format!("released {programs} of {instances}");
                vec![Event::of_daemon("undo", Level::Warn, text)]
            }
        }
    }

    fn event(
        &self,
        kind: &'static str,
        level: Level,
        program: ProgramId,
        cpus: Option<&CpuSet>,
        what: &str,
    ) -> Event {
        let text = format!("{} {what}", self.title(program));
        Event {
            program: Some(program),
            cpus: cpus.cloned(),
            ..Event::of_daemon(kind, level, text)
        }
    }

    /// "program 3 (pigz)".
    fn title(&self, program: ProgramId) -> String {
        let name = self.0.get(&program).map_or("?", |known| &known.name);
        format!("program {program} ({name})")
    }

    /// Returns the differences between the previous and the new placement of a program.
    fn placed(&mut self, id: ProgramId, new: ProgramPlacement) -> Vec<Event> {
        let old = self
            .0
            .get_mut(&id)
            .and_then(|known| known.placement.replace(new.clone()));
        let mut events = Vec::new();
        let old_seat = old.as_ref().map(|old| (old.mode, &old.own));
        if old_seat != Some((new.mode, &new.own)) {
            let cpus = text::cpus(&new.own.to_string());
            let (cpus, what) = match new.mode {
                SeatMode::Seated => (Some(&new.own), format!("has a seat: {cpus}")),
                SeatMode::InTurn => (
                    Some(&new.own),
                    format!("runs in turn with others on {cpus}"),
                ),
                SeatMode::Shared => (None, "has no seat".to_owned()),
            };
            // Without a seat, the set of CPUs follows the seats of other programs.
            let is_news = new.mode != SeatMode::Shared
                || old.as_ref().is_none_or(|old| old.mode != SeatMode::Shared);
            if is_news {
                events.push(self.event("seat", Level::Info, id, cpus, &what));
            }
        }
        let old_loans = old.as_ref().map_or(&[][..], |old| &old.borrowed);
        for (owner, cpus) in new.borrowed.iter().filter(|loan| !old_loans.contains(loan)) {
            let from = match owner {
                Some(owner) => format!(" of {}", self.title(*owner)),
                None => " that no program owns".to_owned(),
            };
            let what = format!("borrows {}{from}", text::cpus(&cpus.to_string()));
            events.push(self.event("lend", Level::Debug, id, Some(cpus), &what));
        }
        for (_, cpus) in old_loans.iter().filter(|loan| !new.borrowed.contains(loan)) {
            let what = format!("returns {}", text::cpus(&cpus.to_string()));
            events.push(self.event("return", Level::Debug, id, Some(cpus), &what));
        }
        let was_frozen = old.is_some_and(|old| old.frozen);
        match (was_frozen, new.frozen) {
            (false, true) => {
                events.push(self.event("freeze", Level::Debug, id, None, "is stopped"))
            }
            (true, false) => events.push(self.event("thaw", Level::Debug, id, None, "continues")),
            _ => {}
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrived(programs: &mut LoggedPrograms, id: u64, name: &str) {
        let (program, name) = (ProgramId(id), name.to_owned());
        programs.events(LogChange::Arrived { program, name });
    }

    fn placement(own: &str, mode: SeatMode) -> ProgramPlacement {
        ProgramPlacement {
            own: own.parse().unwrap(),
            borrowed: Vec::new(),
            mode,
            frozen: false,
        }
    }

    /// Returns the kinds of the events of a new placement.
    fn kinds(programs: &mut LoggedPrograms, placement: &ProgramPlacement) -> Vec<&'static str> {
        let events = programs.events(LogChange::Placed {
            program: ProgramId(1),
            placement: placement.clone(),
        });
        events.iter().map(|event| event.kind).collect()
    }

    #[test]
    fn each_difference_of_a_placement_is_one_event() {
        let mut programs = LoggedPrograms::default();
        arrived(&mut programs, 1, "pigz");
        arrived(&mut programs, 2, "sort");
        let shared = placement("0-3", SeatMode::Shared);
        assert_eq!(kinds(&mut programs, &shared), ["seat"]);
        assert!(kinds(&mut programs, &placement("0-5", SeatMode::Shared)).is_empty());
        let mut seated = placement("0-1", SeatMode::Seated);
        assert_eq!(kinds(&mut programs, &seated), ["seat"]);
        assert!(
            kinds(&mut programs, &seated).is_empty(),
            "no change, no event"
        );
        seated.borrowed = vec![(Some(ProgramId(2)), "2-3".parse().unwrap())];
        assert_eq!(kinds(&mut programs, &seated), ["lend"]);
        seated.frozen = true;
        assert_eq!(kinds(&mut programs, &seated), ["freeze"]);
        seated.frozen = false;
        seated.borrowed.clear();
        assert_eq!(kinds(&mut programs, &seated), ["return", "thaw"]);
    }

    #[test]
    fn texts_name_the_programs_and_the_cpus() {
        let mut programs = LoggedPrograms::default();
        arrived(&mut programs, 1, "pigz");
        arrived(&mut programs, 2, "sort");
        let mut seated = placement("0-1", SeatMode::Seated);
        seated.borrowed = vec![(Some(ProgramId(2)), "3".parse().unwrap())];
        let events = programs.events(LogChange::Placed {
            program: ProgramId(1),
            placement: seated,
        });
        let texts: Vec<&str> = events.iter().map(|event| event.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "program 1 (pigz) has a seat: CPUs 0-1",
                "program 1 (pigz) borrows CPU 3 of program 2 (sort)"
            ]
        );
        assert_eq!(events[1].cpus, Some("3".parse().unwrap()));
    }
}
