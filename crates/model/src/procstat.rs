// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parser of `/proc/PID/stat` (proc_pid_stat(5)) for the fields that Usher needs.
//!
//! [`ProcStat::parse`] returns `None` for a truncated or malformed file. Crate procfs panics on
//! such files, and on unbalanced parentheses in the name of a program. A program can choose a name
//! with unbalanced parentheses.
//!
//! Parsing takes linear time in the length of the text. CPU times are in clock ticks (100 per
//! second on most systems). A sum of ticks that overflows 64 bits counts as malformed.

/// The fields of `/proc/PID/stat` for a process or thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcStat {
    /// Number of the process or thread.
    pub pid: i32,
    /// Name that the process chose: at most 15 bytes, for threads of the kernel 63.
    pub name: String,
    /// State letter: `R`, `S`, `Z` and others.
    pub state: char,
    /// Number of the parent process.
    pub parent: i32,
    /// Number of the process group.
    pub group: i32,
    /// Number of the session.
    pub session: i32,
    /// Device number of the controlling terminal; 0 if there is none.
    pub terminal: i32,
    /// The kernel's `PF_` bits.
    pub flags: u64,
    /// CPU time in user and kernel mode, in clock ticks.
    pub own_ticks: u64,
    /// CPU time in kernel mode, in clock ticks; part of `own_ticks`.
    pub system_ticks: u64,
    /// CPU time of children that ended and were waited for, in clock ticks. Not part of
    /// `own_ticks`.
    pub children_ticks: u64,
    /// Number of threads of the process.
    pub threads: i64,
    /// Start time of the process or thread, in clock ticks since boot.
    pub start_ticks: u64,
    /// Address of the executed program's code; differs after each execution of a program with
    /// address space layout randomisation. The kernel shows 0 or 1 to processes without permission
    /// to trace the process. `None` if the text ends before this field.
    pub code_start: Option<u64>,
    /// Address of the command line; also differs after most executions of programs at fixed
    /// addresses. The kernel shows 0 without permission to trace the process. `None` if the text
    /// ends before this field.
    pub arguments_start: Option<u64>,
    /// Scheduling policy (sched(7)); `None` if the text ends before this field.
    pub policy: Option<u32>,
}

impl ProcStat {
    /// Parses the file's text; `None` if the text is truncated or malformed.
    pub fn parse(text: &str) -> Option<Self> {
        let (pid, rest) = text.split_once(" (")?;
        // The name may contain parentheses and blanks, so the last `) ` of the text ends the name.
        let (name, rest) = rest.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // The manual numbers fields from 1; the first field after the name is number 3.
        let field = |number: usize| fields.get(number - 3).copied();
        let ticks = |number: usize| field(number)?.parse::<u64>().ok();
        Some(Self {
            pid: pid.parse().ok()?,
            name: name.to_owned(),
            state: field(3)?.chars().next()?,
            parent: field(4)?.parse().ok()?,
            group: field(5)?.parse().ok()?,
            session: field(6)?.parse().ok()?,
            terminal: field(7)?.parse().ok()?,
            flags: ticks(9)?,
            own_ticks: ticks(14)?.checked_add(ticks(15)?)?,
            system_ticks: ticks(15)?,
            children_ticks: ticks(16)?.checked_add(ticks(17)?)?,
            threads: field(20)?.parse().ok()?,
            start_ticks: ticks(22)?,
            code_start: ticks(26),
            arguments_start: ticks(48),
            policy: field(41).and_then(|text| text.parse().ok()),
        })
    }

    /// Returns whether all threads of the process have ended. A process of which only the main
    /// thread has ended is also in state `Z`, but has more than one thread, and is not dead.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X') && self.threads <= 1
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "7 (a) b (c) S 1 2 3 0 -1 4194560 100 0 0 0 7 3 5 6 20 0 5 0 4711 1000 10 \
         18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 3 0 5 0\n";

    #[test]
    fn a_name_may_contain_parentheses() {
        let expected = ProcStat {
            pid: 7,
            name: "a) b (c".to_owned(),
            state: 'S',
            parent: 1,
            group: 2,
            session: 3,
            terminal: 0,
            flags: 4_194_560,
            own_ticks: 10,
            system_ticks: 3,
            children_ticks: 11,
            threads: 5,
            start_ticks: 4711,
            code_start: Some(1),
            arguments_start: None,
            policy: Some(5),
        };
        assert_eq!(ProcStat::parse(TEXT), Some(expected));
    }

    #[test]
    fn rejects_a_truncated_text() {
        let needed = TEXT.find(" 1000").unwrap();
        for end in 0..needed - 4 {
            assert_eq!(ProcStat::parse(&TEXT[..end]), None, "{}", &TEXT[..end]);
        }
    }

    proptest! {
        #[test]
        fn a_process_may_have_any_name(name in "\\PC{0,15}", utime in 0u64..1 << 60, start: u64) {
            let text = format!("1 ({name}) S 1 1 1 0 -1 0 0 0 0 0 {utime} 3 0 0 20 0 2 0 {start} 0 0");
            let stat = ProcStat::parse(&text).unwrap();
            prop_assert_eq!((stat.own_ticks, stat.start_ticks, stat.state), (utime + 3, start, 'S'));
            prop_assert_eq!((stat.name, stat.policy), (name, None));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "[-+0-9 ()RSZ]{0,80}|\\PC{0,80}") {
            let _ = ProcStat::parse(&text);
        }
    }
}
