// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the files of `/proc` about the processes of one program: numbers, threads, mappings, and the
//! command line. A file of a process that has ended counts as empty.

use std::path::{Path, PathBuf};

use usher_model::TreeProcess;

use super::THREADS_MAX;
use crate::file::{self, OpenFile};
use crate::text;
use crate::tree::{read_stat, tasks};

/// A thread works if it used this CPU time, and this share of the CPU time of its process.
const WORK_NS: u64 = 2_000_000;
const WORK_SHARE: f64 = 0.05;
/// Upper limit of the length of a shape, in bytes.
const SHAPE_MAX: usize = 1024;

/// The file with the number that the kernel assigned last to a process or thread. It stays open,
/// because it is read at each check of an idle program.
#[derive(Debug)]
pub(super) struct LastPidFile {
    path: PathBuf,
    file: Option<OpenFile>,
}

impl LastPidFile {
    pub(super) fn new(proc_root: &Path) -> Self {
        Self {
            path: proc_root.join("loadavg"),
            file: None,
        }
    }

    /// Returns the number; `None` if the file cannot be read.
    pub(super) fn read(&mut self) -> Option<i32> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(OpenFile::open(self.path.clone()).ok()?),
        };
        let number = |text: &str| text.split_whitespace().last()?.parse().ok();
        file.parse("the last process number", number).ok()
    }
}

/// Returns all processes, the oldest first, so that parents precede their children.
pub(super) fn by_start(proc_root: &Path) -> Vec<i32> {
    let entries = std::fs::read_dir(proc_root).into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let stat = |pid| Some((read_stat(proc_root, pid).ok()?.start_ticks, pid));
    let mut all: Vec<(u64, i32)> = pids.filter_map(stat).collect();
    all.sort_unstable();
    all.into_iter().map(|(_, pid)| pid).collect()
}

/// Returns whether a number belongs to a process and not to another thread of a process.
pub(super) fn is_process(proc_root: &Path, pid: i32) -> bool {
    let path = proc_root.join(pid.to_string()).join("status");
    let status = file::parse(&path, "a process's status", text::status);
    status.is_ok_and(|status| status.tgid == pid)
}

/// Counts the threads that use a considerable part of the CPU time of a process.
pub(super) fn working_threads(proc_root: &Path, process: &TreeProcess) -> u32 {
    let dir = proc_root.join(process.id.pid.to_string()).join("task");
    let time = |tid: i32| {
        let path = dir.join(tid.to_string()).join("schedstat");
        let found = file::parse(&path, "a thread's schedstat", text::sched_stat);
        found.map_or(0, |found| found.cpu_ns)
    };
    let tids = tasks(proc_root, process.id.pid).into_iter();
    let times: Vec<u64> = tids.take(THREADS_MAX).map(time).collect();
    let share_ns = (times.iter().sum::<u64>() as f64 * WORK_SHARE) as u64;
    let working = times.iter().filter(|&&ns| ns >= WORK_NS.max(share_ns));
    u32::try_from(working.count()).unwrap_or(u32::MAX).max(1)
}

/// Returns the size of the executable mappings without the executable itself (`VmLib`), in kB; `None`
/// if the process has ended. Reading the size costs less than reading the list of mappings. The size
/// includes code that the process compiled itself, and leaves out writable mappings.
pub(super) fn library_kb(proc_root: &Path, pid: i32) -> Option<u64> {
    let status = file::read(&proc_root.join(pid.to_string()).join("status")).ok()?;
    let mut lines = status.lines();
    let size = lines.find_map(|line| line.strip_prefix("VmLib:"))?;
    size.trim().trim_end_matches(" kB").parse().ok()
}

/// Returns the number of executable mappings of files; `None` if they cannot be read.
pub(super) fn executable_mappings(proc_root: &Path, pid: i32) -> Option<usize> {
    let text = file::read(&proc_root.join(pid.to_string()).join("maps")).ok()?;
    let is_code = |line: &&str| {
        let mut words = line.split_ascii_whitespace();
        words.nth(1).is_some_and(|rights| rights.contains('x')) && line.contains('/')
    };
    Some(text.lines().filter(is_code).count())
}

/// Returns the number of words of a command line and its options, with each number replaced by `0`.
pub(super) fn shape(cmdline: &[u8]) -> String {
    let words: Vec<&[u8]> = cmdline.split(|&byte| byte == 0).collect();
    let mut shape = format!("{}", words.len().saturating_sub(1));
    let options = words.iter().skip(1).filter(|word| word.starts_with(b"-"));
    for option in options {
        shape.push(' ');
        let mut in_number = false;
        for character in String::from_utf8_lossy(option).chars() {
            let is_digit = character.is_ascii_digit();
            match is_digit {
                true if in_number => {}
                true => shape.push('0'),
                false => shape.push(character),
            }
            in_number = is_digit;
        }
        if shape.len() > SHAPE_MAX {
            shape.truncate(shape.floor_char_boundary(SHAPE_MAX));
            break;
        }
    }
    shape
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_ignore_numbers_and_operands() {
        let of = |words: &[&str]| {
            let line: Vec<u8> = words
                .iter()
                .flat_map(|word| word.bytes().chain([0]))
                .collect();
            shape(&line)
        };
        let worker = |name: &str, pipe: &str| {
            of(&[
                "python3",
                "-m",
                "joblib.popen_loky_posix",
                "--process-name",
                name,
                pipe,
            ])
        };
        assert_eq!(
            worker("LokyProcess-1", "--pipe=12"),
            worker("LokyProcess-20", "--pipe=9")
        );
        assert_ne!(worker("LokyProcess-1", "12"), worker("x", "--pipe=9"));
        assert_eq!(of(&["cc", "-c", "a.c"]), of(&["cc", "-c", "b.c"]));
        assert_ne!(of(&["cc", "-c", "a.c"]), of(&["cc", "-E", "a.c"]));
        assert_eq!(of(&[]), "0");
    }

    #[test]
    fn a_shape_is_bounded() {
        let line = [b"prog\0-".to_vec(), vec![b'x'; 10_000]].concat();
        assert!(shape(&line).len() <= SHAPE_MAX);
    }
}
