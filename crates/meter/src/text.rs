// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parses the text files of the kernel that the meter reads. A parser returns `None` for malformed
//! text, and never panics. Files are read whole, without a limit of their size, because the kernel
//! writes them. The formats are described in `Documentation/filesystems/proc.rst`,
//! `Documentation/admin-guide/iostats.rst`.

use std::path::Path;

use crate::error::MeterError;

/// Reads a whole text file; invalid UTF-8 is replaced.
pub(crate) fn read(path: &Path) -> Result<String, MeterError> {
    let bytes = std::fs::read(path).map_err(MeterError::read(path))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads and parses a file.
pub(crate) fn parse<T>(
    path: &Path,
    expected: &'static str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, MeterError> {
    parse(&read(path)?).ok_or_else(|| MeterError::malformed(path, expected))
}

/// Reads and parses a file that may be missing.
pub(crate) fn parse_optional<T>(path: &Path, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    parse(&read(path).ok()?)
}

/// CPU time of the machine since boot, in clock ticks, summed over all CPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MachineTicks {
    pub busy: u64,
    pub idle: u64,
}

/// Parses the first line of `/proc/stat`. The fields of this line are user, nice, system, idle,
/// iowait, irq and softirq.
pub(crate) fn machine_ticks(text: &str) -> Option<MachineTicks> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let numbers: Vec<u64> = line.split_whitespace().map_while(number).collect();
    let [user, nice, system, idle, rest @ ..] = numbers.as_slice() else {
        return None;
    };
    let at = |i: usize| rest.get(i).copied().unwrap_or(0);
    let busy = [user, nice, system, &at(1), &at(2)];
    Some(MachineTicks {
        busy: busy
            .into_iter()
            .try_fold(0u64, |sum, n| sum.checked_add(*n))?,
        idle: idle.checked_add(at(0))?,
    })
}

/// Returns the number of CPUs in a list such as `0-3,5`.
pub(crate) fn cpu_count(text: &str) -> Option<u32> {
    let cpus: usher_model::CpuSet = text.trim().parse().ok()?;
    u32::try_from(cpus.len()).ok()
}

/// Returns the second number of `/proc/PID/schedstat`, which is the time in nanoseconds that the
/// thread has waited on a run queue.
pub(crate) fn queued_ns(text: &str) -> Option<u64> {
    text.split_whitespace().nth(1).and_then(number)
}

/// Returns the value of a line `key value` or `key: value`.
pub(crate) fn keyed(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key))?;
    number(value.trim_start_matches(':').trim())
}

/// A line of `/proc/diskstats`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DiskLine {
    pub major: u32,
    pub minor: u32,
    pub reads: u64,
    pub read_sectors: u64,
    pub written_sectors: u64,
}

/// Parses a line of `/proc/diskstats`.
pub(crate) fn disk_line(line: &str) -> Option<DiskLine> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let count = |at: usize| fields.get(at).copied().and_then(number);
    Some(DiskLine {
        major: fields.first()?.parse().ok()?,
        minor: fields.get(1)?.parse().ok()?,
        reads: count(3)?,
        read_sectors: count(5)?,
        written_sectors: count(9)?,
    })
}

/// A line of `/proc/net/dev`: name, received bytes and packets, sent bytes and packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LinkLine {
    pub name: String,
    pub received_bytes: u64,
    pub received_packets: u64,
    pub sent_bytes: u64,
    pub sent_packets: u64,
}

/// Parses a line of `/proc/net/dev`; returns `None` for a heading.
pub(crate) fn link_line(line: &str) -> Option<LinkLine> {
    let (name, counts) = line.split_once(':')?;
    let counts: Vec<u64> = counts.split_whitespace().map_while(number).collect();
    let at = |i: usize| counts.get(i).copied();
    Some(LinkLine {
        name: name.trim().to_owned(),
        received_bytes: at(0)?,
        received_packets: at(1)?,
        sent_bytes: at(8)?,
        sent_packets: at(9)?,
    })
}

/// Parses a device number `MAJOR:MINOR`.
pub(crate) fn device_number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Parses a decimal number.
pub(crate) fn number(word: &str) -> Option<u64> {
    word.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        let ticks = machine_ticks("cpu  10 1 6 20 2 3 4 5 9 9\ncpu0 4 0 2\n").unwrap();
        assert_eq!((ticks.busy, ticks.idle), (24, 22));
        assert_eq!(cpu_count("0-3,5\n"), Some(5));
        assert_eq!(queued_ns("5 6 7\n"), Some(6));
        assert_eq!(
            keyed("rchar: 1\nread_bytes: 4096\n", "read_bytes"),
            Some(4096)
        );
        assert_eq!(keyed("usage_usec 12\n", "usage_usec"), Some(12));
    }

    #[test]
    fn reads_disks_and_links() {
        let line = " 254       0 vda 11 0 8472 1 8 0 88 2 0 3 4 0 0 0 0 0 0";
        let disk = disk_line(line).unwrap();
        assert_eq!((disk.major, disk.reads), (254, 11));
        assert_eq!((disk.read_sectors, disk.written_sectors), (8472, 88));
        let line = "  eth0: 100 2 0 0 0 0 0 0 300 4 0 0 0 0 0 0";
        let link = link_line(line).unwrap();
        assert_eq!((link.name.as_str(), link.sent_packets), ("eth0", 4));
        assert_eq!((link.received_bytes, link.sent_bytes), (100, 300));
        assert_eq!(link_line(" face |bytes    packets"), None);
        assert_eq!(device_number("254:3\n"), Some((254, 3)));
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in "([a-z]{0,5}|[-0-9:() \n]{0,20}|cpu ){0,12}") {
            let _ = machine_ticks(&text);
            let _ = cpu_count(&text);
            let _ = queued_ns(&text);
            let _ = keyed(&text, "cpu");
            let _ = disk_line(&text);
            let _ = link_line(&text);
            let _ = device_number(&text);
        }
    }
}
