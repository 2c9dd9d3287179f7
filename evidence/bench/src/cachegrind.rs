// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds the command line of valgrind's tool cachegrind, and parses the file of counts that
//! cachegrind writes.
//!
//! Cachegrind simulates a first-level data cache and a last-level cache of given sizes, and counts
//! instructions, data accesses and the misses of each level, by function. It simulates no
//! prefetcher and runs one thread at a time.

use std::ops::AddAssign;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// Sizes of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheShape {
    /// Capacity in bytes.
    pub bytes: u64,
    /// Number of ways (associativity).
    pub ways: u64,
    /// Bytes of a cache line.
    pub line_bytes: u64,
}

impl CacheShape {
    /// Returns the option of cachegrind for this cache; `name` is `D1` (first-level data cache) or
    /// `LL` (last-level cache).
    pub fn option(self, name: &str) -> String {
        format!("--{name}={},{},{}", self.bytes, self.ways, self.line_bytes)
    }

    /// Returns the sizes as text for readers.
    pub fn describe(self) -> String {
        format!(
            "{} KiB, {} ways, lines of {} B",
            self.bytes >> 10,
            self.ways,
            self.line_bytes
        )
    }
}

/// Returns the beginning of a command line that runs a program under cachegrind with a first-level
/// cache `first` and a last-level cache `last`, and writes the counts to `file`. The caller appends
/// the program and its arguments.
pub fn words(first: CacheShape, last: CacheShape, file: &Path) -> [String; 7] {
    let out = format!("--cachegrind-out-file={}", file.display());
    [
        "valgrind".to_owned(),
        "-q".to_owned(),
        "--tool=cachegrind".to_owned(),
        "--cache-sim=yes".to_owned(),
        first.option("D1"),
        last.option("LL"),
        out,
    ]
}

/// Counts of a run or of a function.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Instructions executed.
    pub instructions: u64,
    /// Reads and writes of data.
    pub accesses: u64,
    /// Accesses that missed the first level.
    pub first: u64,
    /// Accesses that missed both levels.
    pub last: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.instructions += other.instructions;
        self.accesses += other.accesses;
        self.first += other.first;
        self.last += other.last;
    }
}

/// For each field of [`Counts`], the cachegrind events that add up to the count.
const EVENTS: [&[&str]; 4] = [&["Ir"], &["Dr", "Dw"], &["D1mr", "D1mw"], &["DLmr", "DLmw"]];

/// An output file of cachegrind.
#[derive(Debug)]
pub struct CachegrindOutput<'a> {
    text: &'a str,
    /// Number of events in a line of the file, and for each count the indices of its events.
    events: usize,
    columns: [Vec<usize>; EVENTS.len()],
}

impl<'a> CachegrindOutput<'a> {
    /// Parses the header of a file.
    ///
    /// # Errors
    /// The line with the order of the events is missing, or an event is missing in it.
    pub fn read(text: &'a str) -> Result<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix("events:"));
        let line =
            line.context("the file is not written by cachegrind: it has no line 'events:'")?;
        let names: Vec<&str> = line.split_whitespace().collect();
        let mut columns: [Vec<usize>; EVENTS.len()] = Default::default();
        for (columns, events) in columns.iter_mut().zip(EVENTS) {
            for event in events {
                let found = names.iter().position(|name| name == event);
                columns.push(
                    found.with_context(|| {
                        format!("the output of cachegrind has no event {event}")
                    })?,
                );
            }
        }
        Ok(Self {
            text,
            events: names.len(),
            columns,
        })
    }

    /// Returns the counts of the whole run.
    ///
    /// # Errors
    /// The file has no line with the sums of all events (`summary`).
    pub fn all(&self) -> Result<Counts> {
        let mut lines = self.text.lines();
        let line = lines.find_map(|line| line.strip_prefix("summary:"));
        let values = numbers(line.context("no line 'summary:'")?);
        ensure!(
            values.len() == self.events,
            "the line 'summary:' has {} figures for {} events",
            values.len(),
            self.events
        );
        Ok(self.counts(&values))
    }

    /// Returns the summed counts of all functions with `function` in their names; `None` if there
    /// is no such function.
    pub fn of(&self, function: &str) -> Option<Counts> {
        let (mut sum, mut inside, mut seen) = (Counts::default(), false, false);
        for line in self.text.lines() {
            if let Some(name) = line.strip_prefix("fn=") {
                inside = name.contains(function);
                seen |= inside;
            } else if inside && line.starts_with(|c: char| c.is_ascii_digit()) {
                // The first number is the line number of the source. Cachegrind omits trailing
                // zeros.
                sum += self.counts(numbers(line).get(1..).unwrap_or_default());
            }
        }
        seen.then_some(sum)
    }

    fn counts(&self, values: &[u64]) -> Counts {
        let sum = |columns: &Vec<usize>| columns.iter().filter_map(|&at| values.get(at)).sum();
        let [instructions, accesses, first, last] = &self.columns;
        Counts {
            instructions: sum(instructions),
            accesses: sum(accesses),
            first: sum(first),
            last: sum(last),
        }
    }
}

fn numbers(line: &str) -> Vec<u64> {
    line.split_whitespace()
        .map_while(|word| word.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
desc: D1 cache: 32768 B
cmd: usher-bench
events: Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw
fl=a.rs
fn=other
10 5 0 0 9 9 9 9 9 9
fn=usher_bench::coloring::region::walk_queue
20 100 1 1 50 40 30 2 1 0
22 7 0 0 3 2 1
fl=b.rs
fn=usher_bench::coloring::region::walk_queue
4 8 0 0 1 1 1 1 1 1
summary: 120 1 1 63 52 41 12 11 10
";

    fn counts([instructions, accesses, first, last]: [u64; 4]) -> Counts {
        Counts {
            instructions,
            accesses,
            first,
            last,
        }
    }

    #[test]
    fn a_functions_lines_are_added_up() {
        let counted = CachegrindOutput::read(TEXT).unwrap();
        assert_eq!(counted.of("walk_queue"), Some(counts([115, 57, 45, 33])));
        assert_eq!(counted.of("gone"), None);
    }

    #[test]
    fn totals_are_read_by_their_names() {
        let counted = CachegrindOutput::read(TEXT).unwrap();
        assert_eq!(counted.all().unwrap(), counts([120, 75, 63, 51]));
        let turned = "events: DLmw DLmr Dw Dr D1mw D1mr Ir\nsummary: 8 5 60 30 7 4 100\n";
        let turned = CachegrindOutput::read(turned).unwrap().all().unwrap();
        assert_eq!(turned, counts([100, 90, 11, 13]));
    }

    #[test]
    fn a_file_that_is_cut_short_says_where() {
        let error = |text: &str| {
            let all = CachegrindOutput::read(text).and_then(|counted| counted.all());
            all.unwrap_err().to_string()
        };
        assert!(error("").contains("no line 'events:'"));
        assert_eq!(
            error("events: Ir\nsummary: 1\n"),
            "the output of cachegrind has no event Dr"
        );
        let (before, _) = TEXT.split_once("summary:").unwrap();
        assert_eq!(error(before), "no line 'summary:'");
        let short = TEXT.replace(" 12 11 10", "");
        assert!(error(&short).contains("6 figures for 9 events"));
    }

    #[test]
    fn the_program_comes_behind_cachegrinds_words() {
        let shape = |kib: u64| CacheShape {
            bytes: kib << 10,
            ways: 8,
            line_bytes: 64,
        };
        let words = words(shape(32), shape(256), Path::new("counts"));
        assert_eq!(
            words[4..],
            [
                "--D1=32768,8,64",
                "--LL=262144,8,64",
                "--cachegrind-out-file=counts"
            ]
        );
    }
}
