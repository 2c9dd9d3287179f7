// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies of `/sys` with damaged files: invalid lists of CPUs are errors that name the file and its
//! value, and damaged capacities are ignored with a note.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests

#[path = "captures/mod.rs"]
mod captures;

use std::fs;

use captures::{Capture, Cores};
use usher_topology::{Source, describe, load};

const CPU: &str = "sys/devices/system/cpu";

/// Two fast and two slow cores by `cpu_capacity`, with contrary frequencies.
fn hybrid() -> Capture {
    let fast = Cores {
        count: 2,
        l2_sharers: 1,
        has_l3: true,
        capacity: 1024,
        mhz: 2000,
        perf: 100,
        ..Cores::default()
    };
    let slow = Cores {
        capacity: 512,
        mhz: 4000,
        perf: 50,
        ..fast
    };
    Capture::new(&[fast, slow])
}

fn refusal(capture: &Capture) -> String {
    let error = load(Source::Capture(capture.path().to_owned()))
        .unwrap_err()
        .to_string();
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(!error.contains(char::is_control), "{error:?}");
    assert!(error.contains(capture.path().to_str().unwrap()), "{error}");
    error
}

/// The notes without the path of the capture, and the capacities.
fn notes(capture: &Capture) -> (Vec<String>, Vec<f64>) {
    let machine = describe(Source::Capture(capture.path().to_owned())).unwrap();
    let path = format!("{}: ", capture.path().display());
    let notes = machine.notes.iter();
    let notes = notes.map(|note| note.strip_prefix(&path).unwrap().to_owned());
    let capacities = machine.topology.cores.iter().map(|core| core.capacity);
    (notes.collect(), capacities.collect())
}

#[test]
fn invalid_lists_of_online_cpus_are_rejected() {
    for (file, text, reason) in [
        (
            "cpu/online",
            "",
            "is '', which is not a list such as 0-3,8: the list is empty",
        ),
        (
            "cpu/online",
            "all\u{1b}[2J\n",
            "is 'all\\u{1b}[2J', which is not a list",
        ),
        ("cpu/online", "3-0\n", "the range 3-0 ends below its start"),
        ("cpu/online", "-1\n", "is '-1', which is not a list"),
        (
            "cpu/online",
            "0-4294967295\n",
            "exceeds the maximum of 65535",
        ),
        (
            "cpu/online",
            "0-99999999999999999999\n",
            "is not a CPU number",
        ),
        ("cpu/online", "8-9\n", "contains none of these CPUs"),
        ("cpu/online", &"0,".repeat(3000), "the file has 6000 bytes"),
        ("node/online", "x\n", "is 'x', which is not a list"),
    ] {
        let capture = hybrid();
        capture.write(&format!("sys/devices/system/{file}"), text);
        let error = refusal(&capture);
        let named = error.contains(&format!("sys/devices/system/{file}"));
        assert!(named && error.contains(reason), "{error}");
    }
    let capture = hybrid();
    capture.write(&format!("{CPU}/online"), "0-9\n");
    let (found, capacities) = notes(&capture);
    let expected = format!("{CPU}/online lists the CPUs 4-9, which the directory does not contain");
    assert!(
        found.len() == 1 && found[0].contains(&expected),
        "{found:?}"
    );
    assert_eq!(capacities.len(), 4);
}

#[test]
fn invalid_states_of_single_cpus_are_rejected() {
    let capture = hybrid();
    fs::remove_file(capture.path().join(format!("{CPU}/online"))).unwrap();
    capture.write(&format!("{CPU}/cpu3/online"), "0\n");
    let machine = load(Source::Capture(capture.path().to_owned())).unwrap();
    assert_eq!(machine.cpus.len(), 3);
    capture.write(&format!("{CPU}/cpu2/online"), "yes\n");
    assert!(refusal(&capture).contains("cpu2/online is 'yes', which is neither 0 nor 1"));
}

#[test]
fn loops_of_links_in_a_copy_are_rejected() {
    let capture = hybrid();
    let link = capture.path().join(format!("{CPU}/cpu1/cpu_capacity"));
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("cpu_capacity", &link).unwrap();
    let error = refusal(&capture);
    let reason = format!("cannot read {CPU}/cpu1/cpu_capacity: Too many levels of symbolic links");
    assert!(error.contains(&reason), "{error}");
}

#[test]
fn damaged_capacities_are_ignored_with_a_note() {
    assert_eq!(notes(&hybrid()), (Vec::new(), vec![1.0, 1.0, 0.5, 0.5]));
    for text in [
        "",
        "x",
        "12x",
        "-1",
        "+512",
        "0",
        "65536",
        "99999999999999999999",
        "5 12",
        "\0",
    ] {
        let capture = hybrid();
        capture.write(&format!("{CPU}/cpu3/cpu_capacity"), text);
        let (found, capacities) = notes(&capture);
        let start = format!("{CPU}/cpu3/cpu_capacity is '");
        let end = "; cpu_capacity is ignored for all CPUs";
        assert_eq!(found.len(), 1, "{text:?}: {found:?}");
        assert!(
            found[0].starts_with(&start) && found[0].ends_with(end),
            "{found:?}"
        );
        assert!(!found[0].contains(char::is_control), "{found:?}");
        // The firmware's performance is the next source.
        assert_eq!(capacities, [1.0, 1.0, 0.5, 0.5], "{text:?}");
    }
    let capture = hybrid();
    capture.write(&format!("{CPU}/cpu0/cpu_capacity"), "99999");
    capture.write(&format!("{CPU}/cpu1/acpi_cppc/highest_perf"), "much");
    capture.write("sys/devices/cpu_atom/cpus", "2-x\n");
    let (found, capacities) = notes(&capture);
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found[1].contains("highest_perf is 'much', which is not a whole number"));
    assert!(found[2].contains("cpu_atom/cpus is '2-x', which is not a list of CPUs"));
    // The frequencies are the last source.
    assert_eq!(capacities, [0.5, 0.5, 1.0, 1.0]);
    capture.write(&format!("{CPU}/cpu2/cpufreq/cpuinfo_max_freq"), "4e6\n");
    let (found, capacities) = notes(&capture);
    assert!(
        found
            .iter()
            .any(|note| note.contains("cpuinfo_max_freq is '4e6'"))
    );
    assert_eq!(capacities, [1.0; 4]);
}
