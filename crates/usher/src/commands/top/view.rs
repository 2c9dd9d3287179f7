// SPDX-License-Identifier: GPL-2.0-only
//! The state of the view of `usher top`: the last states of the daemons, the order and the filter of
//! the rows, the selected row, and the history of each program's rate. Keys change the view; [`View`]
//! itself reads no clock and no terminal.
//!
//! The history contains the rate of progress at each update, at most [`HISTORY_MAX`] updates. A
//! program whose progress is unknown, or is measured in CPU time, has the history of its busy CPUs.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use usher_model::ProgressSource;

use super::keys::Key;
use super::sort_key::SortKey;
use crate::api::{Program, State};
use crate::peer::users::UserNames;

/// Maximum number of values in the history of a program.
pub const HISTORY_MAX: usize = 120;

/// What the keys do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Keys are commands.
    Normal,
    /// Keys edit the filter.
    Filter,
    /// The help is shown; any key closes it.
    Help,
}

/// Reaction of the caller to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaction {
    /// Draw the view.
    Draw,
    /// Request the state from the daemon now.
    Refresh,
    /// End.
    Quit,
    /// Stop this process, as Ctrl-Z does.
    Suspend,
}

/// The key of a program's row: the pid of its daemon, and the number of the program.
pub type RowKey = (i64, i64);

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// Identifies the program.
    pub key: RowKey,
    /// The program.
    pub program: &'a Program,
    /// The name of its user.
    pub user: &'a str,
    /// The letter that marks its CPUs.
    pub letter: char,
    /// Its history.
    pub history: Option<&'a VecDeque<f64>>,
}

/// The state of the view.
#[derive(Debug)]
pub struct View {
    /// The last states of the daemons, at least one.
    states: Vec<State>,
    /// Column by which the rows are sorted.
    pub sort: SortKey,
    /// Whether the order is reversed.
    pub reversed: bool,
    /// Only programs whose name, user or command contains this text are shown.
    pub filter: String,
    /// What the keys do.
    pub mode: Mode,
    /// The selected program.
    pub selected: Option<RowKey>,
    /// Whether the last daemon has ended, so that the states are old.
    pub is_waiting: bool,
    names: BTreeMap<i64, String>,
    users: UserNames,
    history: BTreeMap<RowKey, VecDeque<f64>>,
}

impl View {
    /// Creates the view of the states of daemons, at least one.
    pub fn new(states: Vec<State>) -> Self {
        let mut view = Self {
            states: Vec::new(),
            sort: SortKey::Number,
            reversed: false,
            filter: String::new(),
            mode: Mode::Normal,
            selected: None,
            is_waiting: false,
            names: BTreeMap::new(),
            users: UserNames::default(),
            history: BTreeMap::new(),
        };
        view.update(states);
        view
    }

    /// Replaces the states, and appends to the histories of their programs.
    pub fn update(&mut self, states: Vec<State>) {
        self.states = states;
        self.is_waiting = false;
        let programs = self.states.iter().flat_map(programs);
        let mut living = BTreeSet::new();
        for (key, program) in programs {
            living.insert(key);
            let values = self.history.entry(key).or_default();
            values.push_back(activity(program));
            if values.len() > HISTORY_MAX {
                values.pop_front();
            }
            let user = self.users.name(program.uid);
            self.names.insert(program.uid, user);
        }
        self.history.retain(|key, _| living.contains(key));
    }

    /// The state of the first daemon. If a system daemon runs, it is the first, and the only daemon
    /// that gives seats.
    pub fn first(&self) -> &State {
        &self.states[0]
    }

    /// The programs of all daemons, in the order of their letters.
    pub fn programs(&self) -> impl Iterator<Item = &Program> {
        self.states.iter().flat_map(|state| &state.programs)
    }

    /// The rows, filtered and sorted.
    pub fn rows(&self) -> Vec<Row<'_>> {
        let programs = self.states.iter().flat_map(programs).enumerate();
        let rows = programs.map(|(at, (key, program))| Row {
            key,
            program,
            user: self.names.get(&program.uid).map_or("", String::as_str),
            letter: letter(at),
            history: self.history.get(&key),
        });
        let mut rows: Vec<Row> = rows.filter(|row| self.is_wanted(row)).collect();
        rows.sort_by(|a, b| {
            let order = self.order(a, b);
            let order = if self.reversed {
                order.reverse()
            } else {
                order
            };
            order.then(a.key.cmp(&b.key))
        });
        rows
    }

    fn is_wanted(&self, row: &Row) -> bool {
        let wanted = self.filter.to_lowercase();
        let texts = [row.program.name.as_str(), &row.program.command, row.user];
        texts
            .iter()
            .any(|text| text.to_lowercase().contains(&wanted))
    }

    fn order(&self, a: &Row, b: &Row) -> Ordering {
        let (p, q) = (a.program, b.program);
        match self.sort {
            SortKey::Number => p.id.cmp(&q.id),
            SortKey::Name => p.name.cmp(&q.name),
            SortKey::User => a.user.cmp(b.user),
            SortKey::Busy => q.busy_cpus.total_cmp(&p.busy_cpus),
            SortKey::Time => q.cpu_seconds.total_cmp(&p.cpu_seconds),
            SortKey::Ntt => q.ntt.unwrap_or(0.0).total_cmp(&p.ntt.unwrap_or(0.0)),
        }
    }

    /// Processes a key.
    pub fn key(&mut self, key: Key) -> Reaction {
        match key {
            Key::Control('c') => return Reaction::Quit,
            Key::Control('z') => return Reaction::Suspend,
            _ => {}
        }
        match self.mode {
            Mode::Normal => self.command(key),
            Mode::Filter => {
                self.edit(key);
                Reaction::Draw
            }
            Mode::Help => {
                self.mode = Mode::Normal;
                match key {
                    Key::Char('q') => Reaction::Quit,
                    _ => Reaction::Draw,
                }
            }
        }
    }

    fn command(&mut self, key: Key) -> Reaction {
        match key {
            Key::Char('q') => return Reaction::Quit,
            Key::Char(' ') => return Reaction::Refresh,
            Key::Char('?' | 'h') => self.mode = Mode::Help,
            Key::Char('/') => self.mode = Mode::Filter,
            Key::Char('s' | '>') | Key::Right => self.sort = self.sort.moved(1),
            Key::Char('<') | Key::Left => self.sort = self.sort.moved(SortKey::ALL.len() - 1),
            Key::Char('r') => self.reversed = !self.reversed,
            Key::Escape => self.filter.clear(),
            Key::Up | Key::Char('k') => self.select(-1),
            Key::Down | Key::Char('j') => self.select(1),
            Key::PageUp => self.select(-10),
            Key::PageDown => self.select(10),
            _ => {}
        }
        Reaction::Draw
    }

    fn edit(&mut self, key: Key) {
        match key {
            Key::Char(c) => self.filter.push(c),
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Enter => self.mode = Mode::Normal,
            Key::Escape => {
                self.filter.clear();
                self.mode = Mode::Normal;
            }
            _ => {}
        }
    }

    /// Moves the selection by a number of rows.
    fn select(&mut self, by: isize) {
        let keys: Vec<RowKey> = self.rows().iter().map(|row| row.key).collect();
        let last = keys.len().saturating_sub(1);
        let now = keys.iter().position(|&key| Some(key) == self.selected);
        let next = match now {
            Some(now) => now.saturating_add_signed(by).min(last),
            None if by < 0 => last,
            None => 0,
        };
        self.selected = keys.get(next).copied();
    }
}

/// Returns the programs of a daemon with their keys.
fn programs(state: &State) -> impl Iterator<Item = (RowKey, &Program)> {
    let key = |program: &Program| (state.pid, program.id);
    state
        .programs
        .iter()
        .map(move |program| (key(program), program))
}

/// The value that the history of a program shows.
fn activity(program: &Program) -> f64 {
    let cpu_time = ProgressSource::CpuTime.to_string();
    match &program.progress {
        Some(progress) if progress.source != cpu_time => progress.per_second,
        _ => program.busy_cpus,
    }
}

/// The letter of the program at this position: a to z, A to Z, then `*`.
pub fn letter(at: usize) -> char {
    let mut letters = ('a'..='z').chain('A'..='Z');
    letters.nth(at).unwrap_or('*')
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::api::{Program_mode, Progress};

    /// Returns a program of the user root on these CPUs.
    pub fn program(id: i64, name: &str, cpus: &str, busy_cpus: f64) -> Program {
        Program {
            id,
            name: name.to_owned(),
            pid: 1000 + id,
            uid: 0,
            job: None,
            command: format!("/usr/bin/{name} --input file"),
            weight: 1.0,
            mode: match cpus.is_empty() {
                true => Program_mode::shared,
                false => Program_mode::seated,
            },
            stopped: false,
            stopped_by_user: false,
            cpus: cpus.to_owned(),
            borrowed: String::new(),
            lent: String::new(),
            cpu_quota: None,
            cores: None,
            pinned_to: None,
            domains: Vec::new(),
            ntt: Some(1.0 + busy_cpus / 10.0),
            threads: 1,
            spinners: 0,
            active_wait: None,
            busy_cpus,
            cpu_seconds: 60.0 * busy_cpus,
            seconds: 100.0,
            progress: Some(Progress {
                total: 1.0,
                per_second: busy_cpus,
                source: "heartbeat".to_owned(),
                confidence: 1.0,
            }),
            background: None,
            abstention: None,
            copies: Vec::new(),
            unrecognised_workers: 0,
            hints: None,
        }
    }

    /// Returns a state with these programs.
    pub fn state(programs: Vec<Program>) -> State {
        State {
            version: String::new(),
            pid: 1,
            keeper_pid: None,
            store: None,
            policy: "usher".to_owned(),
            machine: "m".to_owned(),
            acting: "affinity masks".to_owned(),
            placing: crate::api::Placing {
                placement: String::new(),
                yielding: String::new(),
                reasons: Vec::new(),
            },
            uptime_seconds: 5.0,
            usable: "0-7".to_owned(),
            decisions: 1,
            failed_actions: 0,
            loop_cpu_seconds: 0.0,
            antt: Some(1.25),
            antt_time_sharing: Some(1.5),
            abstains: false,
            abstention: None,
            seating_forbidden: None,
            scheduler: None,
            programs,
            loans: Vec::new(),
            notes: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn names(view: &View) -> Vec<&str> {
        let rows = view.rows();
        rows.iter().map(|row| row.program.name.as_str()).collect()
    }

    fn three() -> View {
        View::new(vec![state(vec![
            program(1, "zip", "0-3", 1.0),
            program(2, "ar", "4-5", 3.0),
            program(3, "make", "6-7", 2.0),
        ])])
    }

    #[test]
    fn rows_are_sorted_by_the_selected_column() {
        let mut view = three();
        assert_eq!(names(&view), ["zip", "ar", "make"]);
        view.key(Key::Char('s'));
        assert_eq!(names(&view), ["ar", "make", "zip"], "by name");
        view.key(Key::Char('r'));
        assert_eq!(names(&view), ["zip", "make", "ar"]);
        view.key(Key::Char('r'));
        view.key(Key::Char('s'));
        view.key(Key::Right);
        assert_eq!(
            (view.sort, names(&view)),
            (SortKey::Busy, vec!["ar", "make", "zip"])
        );
        view.key(Key::Left);
        assert_eq!(view.sort, SortKey::User);
    }

    #[test]
    fn the_filter_selects_by_name_user_and_command() {
        let mut view = three();
        for c in "/MAK".chars() {
            assert_eq!(view.key(Key::Char(c)), Reaction::Draw);
        }
        assert_eq!((view.mode, names(&view)), (Mode::Filter, vec!["make"]));
        view.key(Key::Backspace);
        view.key(Key::Enter);
        assert_eq!((view.mode, view.filter.as_str()), (Mode::Normal, "MA"));
        view.key(Key::Escape);
        assert_eq!(names(&view).len(), 3);
        "/root".chars().for_each(|c| {
            view.key(Key::Char(c));
        });
        assert_eq!(names(&view).len(), 3, "the user of all programs");
    }

    #[test]
    fn keys_end_stop_and_help() {
        let mut view = three();
        assert_eq!(view.key(Key::Char('?')), Reaction::Draw);
        assert_eq!(view.mode, Mode::Help);
        assert_eq!(view.key(Key::Char('x')), Reaction::Draw);
        assert_eq!(view.mode, Mode::Normal);
        assert_eq!(view.key(Key::Char(' ')), Reaction::Refresh);
        assert_eq!(view.key(Key::Control('z')), Reaction::Suspend);
        assert_eq!(view.key(Key::Control('c')), Reaction::Quit);
        view.key(Key::Char('/'));
        assert_eq!(
            view.key(Key::Char('q')),
            Reaction::Draw,
            "part of the filter"
        );
    }

    #[test]
    fn the_selection_stays_within_the_rows() {
        let mut view = three();
        view.key(Key::Down);
        assert_eq!(view.selected, Some((1, 1)));
        view.key(Key::PageDown);
        assert_eq!(view.selected, Some((1, 3)));
        view.key(Key::PageUp);
        assert_eq!(view.selected, Some((1, 1)));
        view.update(vec![state(Vec::new())]);
        view.key(Key::Up);
        assert_eq!(view.selected, None);
    }

    #[test]
    fn the_history_is_bounded_and_ends_with_the_program() {
        let mut view = three();
        for _ in 0..2 * HISTORY_MAX {
            view.update(vec![state(vec![program(1, "zip", "0-3", 1.5)])]);
        }
        let rows = view.rows();
        let history = rows[0].history.unwrap();
        assert_eq!((history.len(), history[0]), (HISTORY_MAX, 1.5));
        assert_eq!(view.history.len(), 1);
    }

    #[test]
    fn programs_of_two_daemons_with_the_same_number_are_distinct_rows() {
        let first = state(vec![program(1, "zip", "0-3", 1.0)]);
        let second = State {
            pid: 2,
            ..state(vec![program(1, "ar", "", 2.0)])
        };
        let mut view = View::new(vec![first, second]);
        assert_eq!(names(&view), ["zip", "ar"]);
        view.key(Key::Down);
        view.key(Key::Down);
        assert_eq!(view.selected, Some((2, 1)));
        let rows = view.rows();
        let history = rows.iter().map(|row| row.history.unwrap()[0]);
        assert_eq!(history.collect::<Vec<_>>(), [1.0, 2.0]);
        assert_eq!((rows[0].letter, rows[1].letter), ('a', 'b'));
    }

    #[test]
    fn letters_are_distinct_as_long_as_possible() {
        assert_eq!(
            [0, 25, 26, 51, 52, 900].map(letter),
            ['a', 'z', 'A', 'Z', '*', '*']
        );
    }
}
