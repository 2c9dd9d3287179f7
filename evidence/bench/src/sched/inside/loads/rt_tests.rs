// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs `hackbench` and `cyclictest` of Debian's package rt-tests, and reads their results.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Groups of hackbench, and messages that each sender sends to each receiver. A group has 20
/// senders and 20 receivers, which are processes.
const GROUPS: usize = 2;
const MESSAGES: usize = 50;
/// Time between two wake-ups of a thread of cyclictest.
const INTERVAL_US: usize = 1_000;

/// Latencies of cyclictest over all of its threads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CyclicLatency {
    /// Mean of the threads' mean latencies in milliseconds.
    pub mean_ms: f64,
    /// Largest latency in milliseconds.
    pub max_ms: f64,
}

/// Runs hackbench. Returns the time in milliseconds that hackbench reports.
pub fn hackbench() -> Result<f64> {
    let (groups, messages) = (GROUPS.to_string(), MESSAGES.to_string());
    let text = output_of("hackbench", &["-g", &groups, "-l", &messages])?;
    hackbench_ms(&text).with_context(|| format!("reading the output of hackbench: {text}"))
}

/// Runs `threads` threads of cyclictest in the normal scheduling class, until each has had
/// `wakeups` wake-ups.
pub fn cyclictest(threads: usize, wakeups: usize) -> Result<CyclicLatency> {
    let options = [
        "--quiet".to_owned(),
        "--policy=other".to_owned(),
        format!("--threads={threads}"),
        format!("--interval={INTERVAL_US}"),
        format!("--loops={wakeups}"),
    ];
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let text = output_of("cyclictest", &options)?;
    cyclic_latency(&text).with_context(|| format!("reading the output of cyclictest: {text}"))
}

fn output_of(program: &str, options: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(options)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("running {program}, of Debian's package rt-tests"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{program} fails: {}",
        stderr.trim().lines().next_back().unwrap_or("no message")
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Reads the line `Time: 0.123`, in seconds.
fn hackbench_ms(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Time:"));
    let seconds: f64 = line?.trim().parse().ok()?;
    Some(seconds * 1e3)
}

/// Reads a line for each thread: `T: 0 (  123) P: 0 I:1000 C:  400 Min:  4 Act:  5 Avg:  6 Max:
/// 78`, in microseconds.
fn cyclic_latency(text: &str) -> Option<CyclicLatency> {
    let of = |line: &str, name: &str| -> Option<f64> {
        let (_, rest) = line.split_once(name)?;
        rest.split_whitespace().next()?.parse().ok()
    };
    let threads = text.lines().filter(|line| line.starts_with("T:"));
    let each: Option<Vec<(f64, f64)>> = threads
        .map(|line| Some((of(line, "Avg:")?, of(line, "Max:")?)))
        .collect();
    let each = each?;
    let max_us = each.iter().map(|(_, max)| *max).reduce(f64::max)?;
    let sum_us: f64 = each.iter().map(|(mean, _)| mean).sum();
    Some(CyclicLatency {
        mean_ms: sum_us / each.len() as f64 / 1e3,
        max_ms: max_us / 1e3,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_hackbench_is_read() {
        let text = "Running in process mode with 2 groups using 40 file descriptors each (== 80 \
                    tasks)\nEach sender will pass 20 messages of 100 bytes\nTime: 0.125\n";
        assert_eq!(hackbench_ms(text), Some(125.0));
        assert_eq!(hackbench_ms("Time: soon"), None);
        assert_eq!(hackbench_ms(""), None);
    }

    #[test]
    fn the_largest_latency_of_all_threads_counts() {
        let text = "# /dev/cpu_dma_latency set to 0us\n\
            T: 0 (  511) P: 0 I:1000 C:    400 Min:      4 Act:   20 Avg:   10 Max:     250\n\
            T: 1 (  512) P: 0 I:1500 C:    266 Min:      5 Act:   20 Avg:   30 Max:    4000\n";
        let latency = cyclic_latency(text).unwrap();
        assert_eq!((latency.mean_ms, latency.max_ms), (0.02, 4.0));
        assert_eq!(cyclic_latency(""), None);
        assert_eq!(cyclic_latency("T: 0 ( 1) P: 0 I:1000 C: 0"), None);
    }

    #[test]
    fn a_missing_program_names_its_package() {
        let error = output_of("usher-no-such-program", &[]).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("rt-tests"), "{text}");
        assert!(output_of("false", &[]).is_err());
    }
}
