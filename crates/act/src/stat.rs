// SPDX-License-Identifier: MIT OR Apache-2.0
//! `/proc/PID/stat`, as far as it matters here.
//!
//! Crate procfs reads the same file, but panics on one that is cut short. A keeper
//! that panics undoes nothing.

use std::io;
use std::path::Path;

use crate::files;

/// Fields of `proc_pid_stat(5)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    pub pid: i32,
    pub state: char,
    pub parent: i32,
    pub group: i32,
    pub session: i32,
    pub flags: u32,
    pub threads: i64,
    /// When the process or thread started, in clock ticks since boot.
    pub start_ticks: u64,
}

impl Stat {
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        let text = files::read_text(path)?;
        let malformed = || io::Error::new(io::ErrorKind::InvalidData, "it is no process's stat");
        Self::parse(&text).ok_or_else(malformed)
    }

    /// The name between the parentheses is the program's choice and may contain
    /// parentheses and blanks, so the last one ends it.
    fn parse(text: &str) -> Option<Self> {
        let (pid, rest) = text.split_once(" (")?;
        let (_name, rest) = rest.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // The manual numbers fields from 1; the state is the third.
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Self {
            pid: pid.parse().ok()?,
            state: field(3)?.chars().next()?,
            parent: field(4)?.parse().ok()?,
            group: field(5)?.parse().ok()?,
            session: field(6)?.parse().ok()?,
            flags: field(9)?.parse().ok()?,
            threads: field(20)?.parse().ok()?,
            start_ticks: field(22)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "7 (a) b (c) S 1 2 3 0 -1 4194560 100 0 0 0 7 3 0 0 20 0 5 0 4711 1000 10 0 1 1\n";

    #[test]
    fn a_name_may_contain_parentheses() {
        let stat = Stat::parse(TEXT).unwrap();
        let expected = Stat {
            pid: 7,
            state: 'S',
            parent: 1,
            group: 2,
            session: 3,
            flags: 4_194_560,
            threads: 5,
            start_ticks: 4711,
        };
        assert_eq!(stat, expected);
    }

    #[test]
    fn a_text_that_is_cut_short_is_refused() {
        let needed = TEXT.find(" 1000").unwrap();
        for end in 0..needed - 4 {
            assert_eq!(Stat::parse(&TEXT[..end]), None, "{}", &TEXT[..end]);
        }
    }
}
